"""Nets in files, trained, exported and evaluated as they would be served."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnncore.errors import CheckpointError, ConfigError
from dnncore.nn import Package
from dnncore.nn.zoo import googlenet, lenet
from dnncore.preprocessing import Preprocessing
from dnncore.train.config import parse_config
from dnncore.train.nets import open_net, preprocessing_of
from dnncore.train.run import evaluate_package, train
from tests.importers.caffe.files import caffemodel, layer
from tests.train.fixtures import CLASSES, make_folder, small_config

PROTOTXT = (
    """layer { name: "d" type: "ImageData" top: "data" top: "label" include { phase: TRAIN }
    transform_param { scale: 0.0078125 mean_value: 127.5 mirror: true }
    image_data_param { is_color: false new_height: 8 new_width: 8 } }\n"""
    + layer(
        "Convolution",
        "conv",
        "data",
        "convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: 'msra' } }",
    )
    + layer("BatchNorm", "bn", "conv")
    + layer("Scale", "scale", "bn", "scale_param { bias_term: true }")
    + layer("ReLU", "relu", "scale")
    + layer("Dropout", "drop", "relu", "dropout_param { dropout_ratio: 0.1 }")
    + layer("InnerProduct", "aux", "relu", "inner_product_param { num_output: 3 weight_filler { type: 'xavier' } }")
    + layer("SoftmaxWithLoss", "auxloss", "aux label", "loss_weight: 0.3 include { phase: TRAIN }")
    + layer("InnerProduct", "own", "drop", "inner_product_param { num_output: 3 weight_filler { type: 'xavier' } }")
    + layer("SoftmaxWithLoss", "loss", "own label")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data") / "stripes")


def _onnx(path: Path, classes: int = 3, batch: str | int = "N") -> Path:
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.standard_normal((6, 1, 3, 3)) / 3,
        "scale": np.ones(6),
        "bias": np.zeros(6),
        "mean": np.full(6, 0.5),
        "var": np.full(6, 2.0),
        "fc": rng.standard_normal((classes, 216)) / 15,
        "fcb": np.zeros(classes),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "fc", "fcb"], ["g"], transB=1),
        helper.make_node("Softmax", ["g"], ["p"], axis=-1),
    ]
    shapes: dict[str, list[int | str]] = {"x": [batch, 1, 8, 8], "p": [batch, classes]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "small", values[:1], values[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "step"]


def test_a_prototxt_is_trained_by_its_losses_and_served_without_auxiliary_heads(tmp_path: Path, folder: Path) -> None:
    path, run = tmp_path / "train.prototxt", tmp_path / "run"
    path.write_text(PROTOTXT)
    config = small_config(run, folder, f"net.path={path}", "preprocessing.of_net=true", "optimizer.lr=0.01")
    outcome = train(config, io.StringIO())
    assert outcome.evaluation is not None
    losses = _losses(run)
    assert np.mean(losses[-4:]) < 0.8 * losses[0]
    package = Package.load(run / "package")
    assert {name.partition(".")[0] for name in package.weights} == {"conv", "bn", "scale", "own"}
    assert np.abs(package.weights["bn.mean"]).max() > 0
    assert package.labels == CLASSES
    assert package.of_images[0].input_shape == (1, 8, 8)
    assert evaluate_package(config, run / "package", io.StringIO()).to_dict() == outcome.evaluation.to_dict()
    path.write_text(PROTOTXT.replace("0.3", "0.4"))
    with pytest.raises(CheckpointError, match=r"another run \(net.sha256"):
        train(config, io.StringIO(), resume=True)


def test_a_prototxt_with_other_losses_is_trained_and_served(tmp_path: Path, folder: Path) -> None:
    """A hinge loss of what is served, and auxiliary ones of a class that is ignored and of a distance."""
    path, run = tmp_path / "train.prototxt", tmp_path / "run"
    own = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "own"'
    assert own in PROTOTXT
    text = PROTOTXT.replace(own, own.replace("SoftmaxWithLoss", "HingeLoss"))
    text = text.replace("loss_weight: 0.3", "loss_weight: 0.3 loss_param { ignore_label: 1 }")
    path.write_text(text + layer("EuclideanLoss", "distance", "aux own", "loss_weight: 0.01"))
    overrides = [f"net.path={path}", "preprocessing.of_net=true", "optimizer.lr=0.01"]
    outcome = train(small_config(run, folder, *overrides), io.StringIO())
    assert outcome.evaluation is not None
    losses = _losses(run)
    assert np.mean(losses[-4:]) < 0.8 * losses[0]
    assert {name.partition(".")[0] for name in Package.load(run / "package").weights} == {"conv", "bn", "scale", "own"}


def test_a_caffemodel_is_what_training_starts_from(tmp_path: Path, folder: Path) -> None:
    path, weights = tmp_path / "train.prototxt", tmp_path / "old.caffemodel"
    path.write_text(PROTOTXT)
    rng = np.random.default_rng(0)
    conv = [rng.standard_normal((6, 1, 3, 3)).astype(np.float32), np.zeros(6, np.float32)]
    weights.write_bytes(caffemodel({"conv": conv}))
    overrides = [f"net.path={path}", f"net.weights={weights}", "optimizer.lr=1e-12", "optimizer.weight_decay=0"]
    with pytest.raises(ConfigError, match=r"'bn' has no weights in the file(?s:.*)'own' has no weights"):
        train(small_config(tmp_path / "run", folder, *overrides), io.StringIO())
    train(small_config(tmp_path / "run", folder, *overrides, "net.allow_missing=true"), io.StringIO())
    np.testing.assert_allclose(Package.load(tmp_path / "run" / "package").weights["conv.weight"], conv[0], atol=1e-6)


def test_an_onnx_file_goes_on_from_its_weights_and_its_statistics(tmp_path: Path, folder: Path) -> None:
    path, run = _onnx(tmp_path / "net.onnx"), tmp_path / "run"
    outcome = train(small_config(run, folder, f"net.path={path}", "optimizer.lr=0.01"), io.StringIO())
    package = Package.load(run / "package")
    assert outcome.evaluation is not None
    assert [node.operator.kind for node in package.graph.nodes][
        -1
    ] == "inner_product"  # logits: the softmax is serving's
    mean = next(array for name, array in package.weights.items() if name.endswith("mean"))
    assert np.abs(mean - 0.5).max() > 0
    again = tmp_path / "again"
    train(small_config(again, folder, f"net.path={run / 'package'}", "preprocessing.of_net=true"), io.StringIO())
    assert Package.load(again / "package").preprocessing == package.preprocessing
    assert _losses(again)[0] < _losses(run)[0]


def test_what_does_not_fit_is_refused_with_the_file_and_the_reason(tmp_path: Path, folder: Path) -> None:
    other = _onnx(tmp_path / "other.onnx", classes=4)
    package = tmp_path / "package"
    net = lenet(3, (1, 8, 8))
    Package("plain", net, net.initialize(0), None, None).save(package)
    broken = tmp_path / "broken.prototxt"
    broken.write_text(PROTOTXT.replace("SoftmaxWithLoss", "InfogainLoss", 1))
    for overrides, message in (
        ([f"net.path={other}"], "other.onnx: it tells 4 classes apart, the data have 3"),
        (
            [f"net.path={_onnx(tmp_path / 'one.onnx', batch=1)}"],
            "one.onnx: .*dnncore import .*one.onnx --shape x=N,1,8,8 --out FOLDER",
        ),
        ([f"net.path={package}", "preprocessing.height=9"], r"package: it reads data: .*N, 1, 8, 8.*\[1, 9, 8\]"),
        ([f"net.path={package}", "preprocessing.of_net=true"], "package says nothing about images"),
        ([f"net.path={other}", "preprocessing.of_net=true"], "other.onnx says nothing about images"),
        ([f"net.path={broken}"], r"broken.prototxt: .*layer 'auxloss' \(InfogainLoss\): no loss"),
        ([f"net.path={tmp_path / 'none.onnx'}"], "none.onnx: .*none.onnx"),
        (["net.path=net.txt"], "net.txt: .*none of a model package"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(small_config(tmp_path / "run", folder, *overrides), io.StringIO())
    for text, message in (
        ("net = { path = 'a.onnx', name = 'alexnet' }", "give one of them"),
        ("net = { path = 'a.onnx', weights = 'b' }", "net.weights is 'b'"),
        ("net = { path = 'a.prototxt', allow_missing = true }", "net.allow_missing"),
        ("preprocessing = { of_net = true }", "preprocessing.of_net"),
        ("net = { path = 'a' }\npreprocessing = { of_net = true, width = 9 }", "preprocessing.of_net takes the place"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_config(text)


@pytest.mark.parametrize(("weight", "heads"), [("0.3", 3), ("0.5", 3), ("0", 1)])
def test_googlenet_is_trained_with_auxiliary_heads_and_served_without(weight: str, heads: int) -> None:
    config = parse_config("", ["net.name=googlenet", f"net.auxiliary_weight={weight}"])
    net = open_net(config.net, 3, (1, 32, 32)).net
    assert [head.weight for head in net.heads] == [1.0, *[float(weight)] * 2][:heads]
    assert any(name.startswith("aux") for name in net.graph.constant) == (heads == 3)
    assert net.served.constant.keys() == googlenet(3, (1, 32, 32)).constant.keys()


def test_preprocessing_of_the_net_is_that_of_its_data_layer(tmp_path: Path) -> None:
    path = tmp_path / "train.prototxt"
    path.write_text(PROTOTXT)
    found = preprocessing_of(parse_config("", [f"net.path={path}"]).net)
    assert isinstance(found, Preprocessing)
    assert found.input_shape == (1, 8, 8)
