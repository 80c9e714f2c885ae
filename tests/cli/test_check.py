"""Packages are checked by inputs whose outputs are known: before they are written, and wherever they come to lie."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from safetensors.numpy import load_file, save_file

from dnncore.cli.__main__ import main
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ModelImportError, PackageError
from dnncore.importers.arrays import read_array
from dnncore.nn.example import Difference, Example
from dnncore.nn.model import Model
from dnncore.nn.package import EXAMPLE_FILE, WEIGHTS_FILE, Package
from dnncore.nn.zoo import lenet
from tests.conftest import DEVICES
from tests.importers.caffe.nets import NETS
from tests.importers.onnx.nets import model_of, onnxruntime_run

CLASSES = 5


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """net.onnx with two inputs and two outputs, what onnxruntime gives for three images as .npy, and as ONNX's data set."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Add", ["f", "t"], ["y"]),
    ]
    constants = {"w": rng.standard_normal((CLASSES, 2, 3, 3)).astype(np.float32)}
    inputs = {"x": ("N", 2, 6, 6), "t": ("N", CLASSES)}
    model = model_of(nodes, inputs, constants, outputs=("y", "p"))
    onnx.save(model, "net.onnx")
    feeds = {
        "x": rng.standard_normal((3, 2, 6, 6)).astype(np.float32),
        "t": rng.standard_normal((3, CLASSES)).astype(np.float32),
    }
    results = onnxruntime_run(model, feeds)
    for name, array in (*feeds.items(), *results.items()):
        np.save(f"{name}.npy", array)
    Path("data").mkdir()
    for kind, arrays in (("input", feeds), ("output", results)):
        for number, (name, array) in enumerate(arrays.items()):
            Path(f"data/{kind}_{number}.pb").write_bytes(numpy_helper.from_array(array, name).SerializeToString())
    return tmp_path


def test_an_import_says_in_which_precision_its_package_is_to_be_served(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "net.onnx", "--out", "p", "--precision", "bf16"]) == 0
    assert Package.load("p").precision is DType.BFLOAT16
    assert main(["import", "net.onnx", "--out", "q"]) == 0
    assert Package.load("q").precision is None
    assert main(["import", "net.onnx", "--out", "r", "--precision", "int8"]) == 1
    assert "int8 needs a calibration" in capsys.readouterr().err
    assert not Path("r").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--check", "data"],
        ["--check-input", "x.npy", "--check-input", "t.npy", "--check-output", "y.npy", "--check-output", "p.npy"],
        ["--check-input", "t=t.npy", "--check-input", "x.npy", "--check-output", "p=p.npy", "--check-output", "y.npy"],
    ],
    ids=["folder", "in order", "by name"],
)
def test_a_package_keeps_what_it_was_checked_by_and_is_verified_by_it(
    files: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "net.onnx", "--out", "p", *arguments]) == 0
    said = capsys.readouterr().out
    assert "check y: right; largest difference" in said
    assert "check p: right; largest difference" in said
    package = Package.load("p")
    assert package.example is not None
    assert np.array_equal(package.example.inputs["t"], np.load("t.npy"))
    assert np.array_equal(package.example.outputs["y"], np.load("y.npy"))
    assert main(["verify", "p"]) == 0
    said = capsys.readouterr().out
    assert "outputs on cpu in fp32, beside the package's example, batch 3:" in said
    assert said.count("right") == 4


def test_a_package_that_is_wrong_is_not_written(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("zip.npz", np.zeros(1))
    Path("zip.npz").rename("zip.npy")
    with pytest.raises(ModelImportError, match=r"zip.npy: is a zip"):
        read_array(Path("zip.npy"))
    wrong = np.load("y.npy")
    wrong[2, 3] += 0.5
    np.save("wrong.npy", wrong)
    inputs = ["--check-input", "x.npy", "--check-input", "t.npy"]
    arguments = ["import", "net.onnx", "--out", "p", *inputs, "--check-output", "wrong.npy"]
    assert main(arguments) == 1
    assert "check y: wrong; largest difference 0.5 at [2, 3], allowed 0.0001 of " in capsys.readouterr().out
    assert not Path("p").exists()
    assert main([*arguments, "--tolerance", "1", "--check-only"]) == 0
    assert Package.load("p").example is None
    assert main([*arguments, "--tolerance", "1"]) == 0
    assert main(["verify", "p"]) == 0  # with the same tolerance
    assert main(["verify", "p", "--tolerance", "1e-4"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check-input", "x.npy"], "a check needs inputs and outputs"),
        (["--check-input", "x.npy", "--check-output", "y.npy"], "inputs x are given, the net reads x, t"),
        (["--check-input", "x.npy", "--check-input", "x=x.npy", "--check-output", "y.npy"], "each is given once"),
        (["--check-input", "x.npy", "--check-output", "nowhere.npy"], "nowhere.npy: cannot be read"),
        (["--check-input", "x.npy", "--check-output", "net.onnx"], "neither a .npy file nor a .pb"),
        (["--check", "data", "--check-input", "x.npy"], "--check FOLDER takes the place"),
        (["--check", "empty"], "it has no input_0.pb, or no output_0.pb"),
        (["--check", "broken"], "output_0.pb: cannot be read"),
        (
            ["--check-input", "wide.npy", "--check-input", "t.npy", "--check-output", "y.npy"],
            "x is float64[3, 2, 6, 6], for 3 images the net has float32[3, 2, 6, 6]",
        ),
        (["--check-input", "long.npy", "--check-output", "y.npy"], "long.npy: cannot be read: "),
        (["--check-input", "code.npy", "--check-output", "y.npy"], "code.npy: cannot be read: "),
    ],
)
def test_files_that_are_no_check_are_told(
    files: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("wide.npy", np.load("x.npy").astype(np.float64))
    np.save("code.npy", np.array([{"a": 1}]), allow_pickle=True)
    Path("long.npy").write_bytes(Path("x.npy").read_bytes().replace(b"(3, 2, 6, 6)", b"(9999999999)"))
    Path("empty").mkdir()
    Path("broken").mkdir()
    Path("broken/input_0.pb").write_bytes(Path("data/input_0.pb").read_bytes())
    Path("broken/output_0.pb").write_bytes(b"\xff\xff")
    assert main(["import", "net.onnx", "--out", "p", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not Path("p").exists()


def test_what_caffe_gives_for_a_classifier_is_taken_as_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = NETS["squeezenet1.1"][0](16).replace("1000", "7").replace("227", "64")
    Path("net.prototxt").write_text(text)
    Path("labels.txt").write_text("\n".join("abcdefg"))
    assert main(["import", "net.prototxt", "--out", "p", "--labels", "labels.txt"]) == 0
    package = Package.load("p")
    example = Example.random(Model(package.graph, package.weights))
    ((_, rows),) = example.outputs.items()
    np.save("x.npy", example.inputs["data"])
    np.save("prob.npy", rows[:, :, None, None])
    check = ["--check-input", "x.npy", "--check-output", "prob.npy"]
    assert main(["import", "net.prototxt", "--out", "p", "--labels", "labels.txt", *check]) == 0
    assert Package.load("p").example is not None


@pytest.mark.parametrize("device", DEVICES)
def test_a_package_is_verified_on_every_device_and_in_every_precision(device: str, tmp_path: Path) -> None:
    graph = lenet()
    Package("digits", graph, graph.initialize(0), None, None).save(tmp_path / "digits")
    for precision in ("fp32", "fp16", "bf16"):
        command = ["verify", str(tmp_path / "digits"), "--device", device, "--precision", precision]
        assert main(command) == 0, precision
    assert main([*command, "--tolerance", "1e-7"]) == 1


def test_a_package_that_was_changed_is_not_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = lenet()
    weights = graph.initialize(0)
    example = Example.random(Model(graph, weights), batch=2)
    Package("digits", graph, weights, None, None, example=example).save(tmp_path / "digits")
    for name in (WEIGHTS_FILE, EXAMPLE_FILE):
        tensors = load_file(tmp_path / "digits" / name)
        whole = (tmp_path / "digits" / name).read_bytes()
        first = next(iter(tensors))
        save_file(tensors | {first: tensors[first] + 1}, tmp_path / "digits" / name)
        assert main(["verify", str(tmp_path / "digits")]) == 1
        assert f"tensor {first!r} in {name} has SHA-256" in capsys.readouterr().err
        (tmp_path / "digits" / name).write_bytes(whole)
    bias = graph.constants[-1].name
    others = weights | {bias: weights[bias] + 1}
    Package("digits", graph, others, None, None, example=example).save(tmp_path / "digits")
    assert main(["verify", str(tmp_path / "digits")]) == 1
    assert "wrong; largest difference 1 at" in capsys.readouterr().out


def test_packages_of_before_have_no_example(tmp_path: Path) -> None:
    graph = lenet()
    Package("digits", graph, graph.initialize(0), None, None).save(tmp_path / "digits")
    path = tmp_path / "digits" / "model.json"
    document = json.loads(path.read_text())
    assert document.pop("example") is None
    path.write_text(json.dumps(document))
    assert Package.load(tmp_path / "digits").example is None


@pytest.mark.parametrize("tolerance", [float("inf"), float("nan"), -1.0])
def test_a_package_cannot_allow_every_difference(tolerance: float, tmp_path: Path) -> None:
    graph = lenet()
    weights = graph.initialize(0)
    example = Example.random(Model(graph, weights), batch=1)
    Package("digits", graph, weights, None, None, example=example).save(tmp_path / "digits")
    path = tmp_path / "digits" / "model.json"
    document = json.loads(path.read_text())
    document["example"]["tolerance"] = tolerance
    path.write_text(json.dumps(document))
    with pytest.raises(PackageError, match="tolerance"):
        Package.load(tmp_path / "digits")


def test_an_example_is_one_of_its_net_and_small() -> None:
    graph = lenet()
    weights = graph.initialize(0)
    example = Example.random(Model(graph, weights), batch=3)
    assert example.batch(graph) == 3
    (output,) = example.outputs
    for inputs, outputs, message in (
        ({}, example.outputs, "inputs  are given"),
        (example.inputs, {}, "no outputs"),
        (example.inputs, {"other": example.outputs[output]}, "outputs other are unknown"),
        (example.inputs, {output: example.outputs[output][:2]}, "for 3 images"),
    ):
        with pytest.raises(BadParamError, match=message):
            Example(inputs, outputs).batch(graph)
    inputs, outputs = (
        {name: np.zeros((1 << 18, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        for arrays in (example.inputs, example.outputs)
    )
    with pytest.raises(PackageError, match="at most 67108864 B are kept"):
        Package("digits", graph, weights, None, None, example=Example(inputs, outputs))


@pytest.mark.parametrize(
    ("found", "expected", "largest", "place", "is_allowed"),
    [
        ([1, 2, 3], [1, 2, 3], 0, 0, True),
        ([1, 2, 3.0002], [1, 2, 3], 0.0002, 2, True),
        ([1, 2.001, 3], [1, 2, 3], 0.001, 1, False),
        ([1, np.nan, 3], [1, 2, 3], np.inf, 1, False),
        ([1, np.nan, 3], [1, np.nan, 3], 0, 0, True),
        ([1, np.inf, -np.inf], [1, np.inf, np.inf], np.inf, 2, False),
        ([0, 0, 1e-9], [0, 0, 0], 1e-9, 2, False),
        ([0, 0, 0], [0, 0, 0], 0, 0, True),
    ],
)
def test_differences_are_relative_to_the_largest_element(
    found: list[float], expected: list[float], largest: float, place: int, is_allowed: bool
) -> None:
    one = Difference.between("y", np.array(found), np.array(expected), 1e-4)
    assert one.largest == pytest.approx(largest, abs=1e-12)
    assert one.place == (place,)
    assert one.is_allowed is is_allowed
