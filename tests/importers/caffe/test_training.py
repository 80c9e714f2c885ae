"""Nets as their files say that they are trained: losses with weights, multipliers of parameters."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore.errors import ModelImportError
from dnncore.importers.caffe import import_trainable
from dnncore.nn.graph import Role
from dnncore.nn.heads import Head
from dnncore.nn.model import Model
from dnncore.nn.trainable import Multipliers, Trainable
from dnncore.nn.training import for_training
from dnncore.train.metrics import ranks
from tests.importers.caffe.files import caffemodel, data, layer, run

LABELS = 'layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN } }\n'
BODY = layer("Convolution", "conv", "data", "convolution_param { num_output: 4 kernel_size: 3 }") + layer(
    "ReLU", "relu", "conv", tops="conv"
)


_ROWS = (
    'layer { name: "d" type: "Data" top: "d" top: "label" }\n'
    + data(1, 4, name="logits")
    + layer("Power", "x", "logits")
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
        + _loss("own/loss", "own", "propagate_down: true propagate_down: false")
        + _loss("shown", "conv", "loss_weight: 0", "EuclideanLoss")
        + layer("Accuracy", "accuracy", "own label", "propagate_down: false propagate_down: false")
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
        + layer("Power", "l5", "conv", "loss_weight: 2")
        + _loss("l6", "a", "propagate_down: false propagate_down: true")
    )
    with pytest.raises(ModelImportError) as caught:
        import_trainable(text.encode(), image_shape=(3, 6, 6))
    wrong = [problem for problem in caught.value.problems if "layer" in problem]
    assert [problem.split("'")[1] for problem in wrong] == ["a", "l6", "l5", "l1", "l2", "l3", "l4"]


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "normalization: VALID",
        "normalization: FULL",
        "normalization: BATCH_SIZE",
        "normalize: false",
        "normalize: true",
    ],
)
def test_a_loss_is_the_mean_over_the_batch_however_it_is_normalised(settings: str) -> None:
    """Of rows of classes, every image has one: the number of losses, of those that count and of images is the same."""
    net, _ = import_trainable((_ROWS + _loss("loss", "x", f"loss_param {{ {settings} }}")).encode())
    logits = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    labels = np.array([1, 3, 0], np.int32)
    loss, gradient = _step(net, logits, labels)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(probabilities[np.arange(3), labels]), rtol=1e-5)
    np.testing.assert_allclose(gradient, (probabilities - np.eye(4)[labels]) / 3, rtol=1e-4, atol=1e-6)


def test_the_loss_of_what_is_unlikely_is_not_cut_off_where_caffes_is() -> None:
    """A difference that docs/caffe.md lists: Caffe takes log(max(p, FLT_MIN)), and yet the same gradient."""
    net, _ = import_trainable((_ROWS + _loss("loss", "x")).encode())
    loss, gradient = _step(net, np.array([[200, 0, 0, 0], [1, 1, 1, 1]], np.float32), np.array([1, 2], np.int32))
    assert -np.log(np.finfo(np.float32).tiny) < 87.4
    np.testing.assert_allclose(loss, [200, np.log(4)], rtol=1e-6)
    np.testing.assert_allclose(gradient[0], [0.5, -0.5, 0, 0], atol=1e-6)


def test_of_tied_scores_the_lower_class_is_right_where_caffe_counts_neither() -> None:
    """A difference that docs/caffe.md lists: Caffe's Accuracy counts who scores as much among those that are better."""
    scores = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 2]], np.float32)
    labels = np.array([0, 1, 2])
    own = scores[np.arange(3), labels][:, None]
    assert ((scores >= own).sum(1) - 1 < 1).tolist() == [False, False, True]  # Caffe's
    assert (ranks(scores, labels) < 1).tolist() == [True, False, True]


def _step(net: Trainable, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The losses of images, and the gradient of what they are of."""
    graph = for_training(net).graph
    graph = graph.rewritten(graph.nodes, outputs=("loss", "d.loss"))
    found = run(Model(graph, {}), logits, labels)
    return found["loss"], found["d.loss"]
