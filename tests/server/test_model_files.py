"""dnnserve with a file of another framework: what it says of one that it takes, and of one that it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from dnnclient import Client
from dnnserve.assembly import make_server
from dnnserve.command_line import parse_arguments
from dnnserve.envelope import ModelKey
from dnnserve.errors import InvalidRequestError, StartError
from dnnserve.front.model_info import metadata_message
from dnnserve.front.requests import parse_infer
from dnnserve.lifecycle.reading import model_spec
from dnnserve.repository import import_model_file
from onnx import helper
from PIL import Image, ImageDraw

from dnncore.importers.model_file import ModelFile
from dnncore.nn.heads import ends_in_probabilities
from dnncore.preprocessing import preset
from tests.importers.caffe.files import caffemodel, random_blobs
from tests.importers.caffe.nets import NETS
from tests.importers.onnx.nets import model_of, onnxruntime_run
from tests.server.packages import make_repository
from tests.server.test_requests import infer_request

CLASSES = 4
_OCR = importlib.util.find_spec("rapidocr_onnxruntime")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In it: a classifier and a net that is none, one with two unknown operators, a prototxt with and one without weights."""
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["pool"]), helper.make_node("Conv", ["pool", "w"], ["y"])]
    weights = {"w": np.ones((CLASSES, 3, 1, 1), np.float32)}
    onnx.save(model_of(nodes, {"x": ("N", 3, 16, 24)}, weights), "net.onnx")
    summed = helper.make_node("ReduceSum", ["x", "axes"], ["y"])
    onnx.save(model_of([summed], {"x": ("N", 3, 16, 24)}, {"axes": np.array([0])}), "sum.onnx")
    two = {"x": ("N", 3, 16, 24), "z": ("N", 3, 16, 24)}
    onnx.save(model_of([helper.make_node("Add", ["x", "z"], ["y"])], two), "two.onnx")
    strange = [helper.make_node(kind, ["x"], [f"{kind}.y"], kind) for kind in ("NonZero", "Hardmax")]
    onnx.save(model_of(strange, {"x": ("N", 3, 16, 24)}, outputs=("NonZero.y", "Hardmax.y")), "strange.onnx")
    lenet = NETS["lenet"][0](4)
    for name in ("lenet", "deploy"):
        Path(f"{name}.prototxt").write_text(lenet)
    Path("lenet.caffemodel").write_bytes(caffemodel(random_blobs(lenet)))
    onnx.save(model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 3, 16, 24)}), "one.onnx")
    Path("labels.txt").write_text("ant\nbee\ncat\ndog\n")
    Path("net.pt").touch()
    Path("my net.onnx").write_bytes(Path("net.onnx").read_bytes())
    make_repository(tmp_path / "models")
    return tmp_path


def test_labels_make_a_file_a_classifier_by_its_stem(folder: Path) -> None:
    file = ModelFile(Path("net.onnx"), labels=Path("labels.txt"), preprocess="torchvision")
    ((key, package),) = import_model_file(file).items()
    assert key == ModelKey("net", 1)
    assert package.labels == ("ant", "bee", "cat", "dog")
    assert package.preprocessing == preset("torchvision", (3, 16, 24))
    assert ends_in_probabilities(package.serving_graph)


def test_classes_without_labels_go_by_their_numbers(folder: Path) -> None:
    (package,) = import_model_file(ModelFile(Path("net.onnx"), preprocess="timm")).values()
    assert package.labels == ("0", "1", "2", "3")


def test_the_weights_of_a_prototxt_lie_beside_it_or_are_named(folder: Path) -> None:
    beside = import_model_file(ModelFile(Path("lenet.prototxt")))
    named = import_model_file(ModelFile(Path("deploy.prototxt"), Path("lenet.caffemodel")))
    assert list(beside) == list(named) == [ModelKey("lenet", 1)]
    (one,), (other,) = beside.values(), named.values()
    assert all(np.array_equal(one.weights[name], array) for name, array in other.weights.items())
    assert np.array_equal(one.weights["conv1.weight"], random_blobs(NETS["lenet"][0](4))["conv1"][0])


def test_what_comes_without_preprocessing_takes_tensors_alone(folder: Path) -> None:
    ((key, package),) = import_model_file(ModelFile(Path("lenet.prototxt"))).items()
    spec = model_spec(key, package, 8)
    assert ([each.shape for each in (*spec.signature.inputs, *spec.signature.outputs)], spec.labels) == (
        [(1, 28, 28), (10,)],
        (),
    )
    assert list(metadata_message(spec, [1]).outputs[0].shape) == [-1, 10]
    rows = np.zeros((2, 1, 28, 28), np.float32)
    tensor = infer_request("FP32", rows.shape, rows.tobytes())
    asked = parse_infer(tensor.SerializeToString()).read(spec)
    assert isinstance(asked.source, list)
    assert [each.shape for each in asked.source] == [rows.shape]
    for refused in (infer_request("UINT8", (1, 28, 28, 1), bytes(784)), infer_request("BYTES", (1,), b"\1\0\0\0x")):
        with pytest.raises(
            InvalidRequestError, match=r"lenet/1 is served without preprocessing.*FP32 \[n, 1, 28, 28\]"
        ):
            parse_infer(refused.SerializeToString()).read(spec)


@pytest.mark.skipif(_OCR is None, reason="pip install --no-deps rapidocr-onnxruntime==1.4.4")
def test_a_detector_whose_output_is_a_map_is_served() -> None:
    assert _OCR is not None
    path = Path(_OCR.origin or "").parent / "models" / "ch_PP-OCRv4_det_infer.onnx"
    drawn = Image.new("L", (96, 64), 255)
    ImageDraw.Draw(drawn).text((12, 36), "tensors", fill=0, font_size=20)
    x = np.ascontiguousarray(np.broadcast_to(np.asarray(drawn, np.float32) / 127.5 - 1, (1, 3, 64, 96)))
    arguments = [
        "--model",
        str(path),
        "--name",
        "detector",
        "--shape",
        "x=N,3,64,96",
        "--max-batch",
        "1",
        "--no-save-costs",
    ]
    server = make_server(parse_arguments([*arguments, "--devices", "cpu", "--grpc-port", "0", "--metrics-port", "0"]))
    server.start()
    with Client(server.addresses.grpc, model="detector") as client:
        ((name, found),) = client.infer({"x": x}).items()
    assert server.drain()
    np.testing.assert_allclose(found, onnxruntime_run(path, {"x": x})[name], atol=1e-4)
    assert found.shape == (1, 1, 64, 96)
    assert found[0, 0, 36:].max() > 0.9 > 0.1 > found[0, 0, :20].max()


REFUSED = {
    "several operators": (["--model", "strange.onnx"], r"2 problems\n.*NonZero.*\n.*Hardmax"),
    "no file": (["--model", "none.onnx"], "'none.onnx' does not exist"),
    "weights of PyTorch": (["--model", "net.pt"], "torch.save_package"),
    "one image": (["--model", "one.onnx"], "x: .*a fixed number of rows.*: --shape x=N,3,16,24$"),
    "no weights": (["--model", "deploy.prototxt"], "--weights FILE.caffemodel, or put deploy.caffemodel beside it"),
    "a name that is none": (["--model", "my net.onnx"], "'my net'; give it another with --name: letters"),
    "another kind": (["--model", "labels.txt"], "none of a model package"),
    "labels that do not fit": (["--model", "lenet.prototxt", "--labels", "labels.txt"], "4 labels"),
    "labels that are not there": (["--model", "net.onnx", "--labels", "none.txt"], "none.txt"),
    "preprocessing": (
        ["--model", "net.onnx", "--preprocess", "tf"],
        "neither a file nor one of torchvision, timm, caffe",
    ),
    "preprocessing for colours": (["--model", "lenet.prototxt", "--preprocess", "caffe"], r"3 channels.*\[1, 28, 28\]"),
    "no square": (["--model", "net.onnx", "--preprocess", "caffe"], "the net reads 16 x 24"),
    "of a package": (
        ["--model", "models/digits/1", "--labels", "labels.txt"],
        "--labels: 'models/digits/1' is no file",
    ),
    "int8 of values that nobody has seen": (
        ["--model", "models/digits/1", "--precision", "int8"],
        "model digits/1: --precision int8 needs a package with a calibration.*dnncore calibrate PACKAGE FOLDER",
    ),
    "a sum over the batch": (["--model", "sum.onnx"], r"y: float32\[1, 3, 16, 24\] is no batch of rows of one size"),
    "preprocessing of one of two inputs": (
        ["--model", "two.onnx", "--preprocess", "torchvision"],
        r"preprocessing is for nets of one input.*the net reads x: .*; z: ",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_told_with_the_remedy(folder: Path, arguments: list[str], message: str) -> None:
    config = parse_arguments([*arguments, "--devices", "cpu", "--grpc-port", "0", "--metrics-port", "0"])
    with pytest.raises(StartError, match=message):
        make_server(config)


def test_what_says_something_of_a_file_needs_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--model-repository", "models", "--labels", "labels.txt", "--name", "net"])
    assert "--name, --labels: for an .onnx file or a .prototxt, given with --model" in capsys.readouterr().err
