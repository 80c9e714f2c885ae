"""Nets as their files say that they are trained: losses with weights, multipliers of parameters, what is done to images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dnncore.errors import ModelImportError
from dnncore.importers.caffe import import_trainable, read_preprocessing
from dnncore.nn.graph import Role
from dnncore.nn.heads import Head
from dnncore.nn.trainable import Multipliers
from dnncore.preprocessing import CenterCrop, Color, Preprocessing, Resize, Scale, SubtractMean, SubtractMeanImage
from tests.importers.caffe.files import blob, caffemodel, data, layer

LABELS = 'layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN } }\n'
BODY = layer("Convolution", "conv", "data", "convolution_param { num_output: 4 kernel_size: 3 }") + layer(
    "ReLU", "relu", "conv", tops="conv"
)


def _classes(name: str, bottom: str, settings: str = "") -> str:
    return layer("InnerProduct", name, bottom, f"inner_product_param {{ num_output: 3 }} {settings}")


def _loss(name: str, bottom: str, settings: str = "", kind: str = "SoftmaxWithLoss") -> str:
    return layer(kind, name, f"{bottom} label", settings)


def test_losses_are_heads_of_which_the_heaviest_is_served() -> None:
    text = (
        LABELS
        + BODY
        + _classes("aux", "conv")
        + _loss("aux/loss", "aux", "loss_weight: 0.3")
        + _classes("own", "conv", "param { lr_mult: 10 } param { lr_mult: 20 decay_mult: 0 }")
        + _loss("own/loss", "own")
        + _loss("shown", "conv", "loss_weight: 0", "EuclideanLoss")
        + layer("Accuracy", "accuracy", "own label")
    )
    net, weights = import_trainable(text.encode(), image_shape=(3, 6, 6))
    assert net.heads == (Head("own"), Head("aux", 0.3))
    assert net.multipliers == {"own.weight": Multipliers(10), "own.bias": Multipliers(20, 0)}
    assert [value.name for value in net.graph.inputs] == ["data"]
    assert net.num_classes == 3
    assert {name.partition(".")[0] for name in net.graph.constant} == {"conv", "aux", "own"}
    assert {name.partition(".")[0] for name in net.served.constant} == {"conv", "own"}
    assert weights == {}


def test_a_file_without_losses_is_trained_by_what_its_softmax_reads() -> None:
    convolution = "convolution_param { num_output: 5 kernel_size: 6 } param { lr_mult: 0 }"
    text = data(10, 2, 6, 6) + layer("Convolution", "fc", "data", convolution) + layer("Softmax", "prob", "fc")
    blobs = [np.ones((5, 2, 6, 6), np.float32), np.ones(5, np.float32)]
    net, weights = import_trainable(text.encode(), caffemodel({"fc": blobs}))
    assert net.graph.values[net.heads[0].logits].shape == ("N", 5)
    assert [node.operator.kind for node in net.graph.nodes] == ["convolution", "flatten"]
    assert net.graph.constant["fc.weight"].role is Role.FIXED
    np.testing.assert_array_equal(weights["fc.weight"], blobs[0])


def test_losses_that_are_not_trained_with_are_listed_by_name() -> None:
    text = (
        LABELS
        + BODY
        + _classes("a", "conv", "propagate_down: false")
        + _loss("l1", "a", kind="HingeLoss")
        + _loss("l2", "a", "loss_param { ignore_label: 255 }")
        + _loss("l3", "a", "loss_param { normalization: NONE }")
        + layer("SoftmaxWithLoss", "l4", "a conv")
    )
    with pytest.raises(ModelImportError) as caught:
        import_trainable(text.encode(), image_shape=(3, 6, 6))
    wrong = [problem for problem in caught.value.problems if "layer" in problem]
    assert [problem.split("'")[1] for problem in wrong] == ["a", "l1", "l2", "l3", "l4"]


def _data(transform: str, more: str = "", phase: str = "TEST", kind: str = "ImageData") -> str:
    settings = f"include {{ phase: {phase} }} transform_param {{ {transform} }} {more}"
    return f'layer {{ name: "d{phase}" type: "{kind}" top: "data" top: "label" {settings} }}\n'


def test_what_a_data_layer_does_to_images_is_a_specification() -> None:
    sized = "image_data_param { new_height: 20 new_width: 30 }"
    text = _data("mirror: true scale: 2", phase="TRAIN") + _data("crop_size: 8 mean_value: [1, 2, 3] scale: 0.5", sized)
    steps = (Color("bgr"), Resize(20, 30, antialias=False), CenterCrop(8, 8, rounding="down"))
    expected = Preprocessing((*steps, SubtractMean((1.0, 2.0, 3.0)), Scale((0.5,))))
    assert read_preprocessing(text.encode()) == expected
    of_training = _data("mirror: true crop_size: 4", phase="TRAIN", kind="Data")
    steps = (Color("bgr"), Resize(256, 256, antialias=False), CenterCrop(4, 4, rounding="down"))
    assert read_preprocessing(of_training.encode()) == Preprocessing(steps)
    gray = _data("force_gray: true", kind="Data")
    assert read_preprocessing(gray.encode(), input_shape=(1, 8, 9)).input_shape == (1, 8, 9)


def test_mean_images_are_found_where_the_layer_says_or_beside_the_file(tmp_path: Path) -> None:
    mean = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)
    (tmp_path / "mean.binaryproto").write_bytes(blob(mean, "legacy").SerializeToString())
    net = tmp_path / "net.prototxt"
    net.write_text(
        _data('mean_file: "mean.binaryproto" crop_size: 2', "image_data_param { new_height: 4 new_width: 4 }")
    )
    assert read_preprocessing(net).steps[-1] == SubtractMeanImage.of(mean[0, :, 1:3, 1:3])
    net.write_text(net.read_text().replace('"mean.', '"elsewhere/mean.'))
    with pytest.raises(
        ModelImportError, match=r"mean_file 'elsewhere/mean.binaryproto' is not there; looked at elsewhere"
    ):
        read_preprocessing(net)
    assert read_preprocessing(net, mean=tmp_path / "mean.binaryproto").input_shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (data(1, 3, 8, 8), "no data layer with a transform_param"),
        (_data("scale: 2", kind="Data"), "does not say how large images are"),
        (_data("crop_size: 300", kind="Data"), "crop_size 300 is larger"),
        (_data("crop_size: 8 mirror: true", kind="Data"), "mirror is true"),
    ],
)
def test_data_layers_that_say_too_little_are_refused(text: str, message: str) -> None:
    with pytest.raises(ModelImportError, match=message):
        read_preprocessing(text.encode())
