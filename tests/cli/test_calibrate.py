"""Packages are calibrated by folders of images or of inputs, and are then described and verified in int8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from dnncore.cli.__main__ import main
from dnncore.dtypes import DType
from dnncore.nn.package import Package
from tests.importers.onnx.nets import model_of
from tests.server.packages import make_package

IMAGES = 11


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In it: a package, and images in two subfolders beside a text."""
    monkeypatch.chdir(tmp_path)
    make_package().save("digits")
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        path = Path("images") / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (10, 12), np.uint8)).save(path)
    Path("images/notes.txt").write_text("none of them")
    return tmp_path


def test_a_package_to_be_served_in_int8_is_verified_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "digits", "images", "--precision", "int8"]) == 0
    assert Package.load("digits").precision is DType.INT8
    capsys.readouterr()
    assert main(["verify", "digits"]) == 0
    assert "outputs on cpu in int8, beside" in capsys.readouterr().out
    assert main(["verify", "digits", "--precision", "fp32"]) == 0
    assert "outputs on cpu in fp32, beside" in capsys.readouterr().out


def test_a_package_is_calibrated_and_then_run_in_int8(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_int8 = ["--precision", "int8"]
    for command in (["verify", "digits"], ["describe", "digits", "--passes"]):
        assert main([*command, *in_int8]) == 1
        assert "net 'lenet' cannot be run in int8: it is not calibrated (dnncore calibrate)" in capsys.readouterr().err
    assert main(["calibrate", "digits", "images"]) == 0
    said = capsys.readouterr().out
    assert f"digits: calibrated with {IMAGES} images (mse); 2 layers are computed in int8" in said
    assert "beside fp32 on these images: relative error" in said
    assert "the same class first for" in said
    package = Package.load("digits")
    assert package.calibration is not None
    assert package.calibration.images == IMAGES
    assert package.labels == make_package().labels
    assert package.example is not None
    assert package.example.inputs["data"].shape == (2, 1, 8, 8)
    assert main(["verify", "digits"]) == main(["verify", "digits", *in_int8]) == 0
    assert main(["describe", "digits", "--passes", *in_int8]) == 0
    said = capsys.readouterr().out
    assert "+1 quantized_convolution, +1 quantized_inner_product" in said
    assert main(["describe", "digits", "--passes", *in_int8, "--without", "quantize"]) == 0
    assert "pass    quantize: left out" in capsys.readouterr().out
    assert main(["draw", "digits", "-o", "net.dot", "--passes", *in_int8]) == 0
    assert "quantized_convolution" in Path("net.dot").read_text()


def test_how_many_images_and_how_a_range_is_chosen_can_be_said(folder: Path) -> None:
    assert main(["calibrate", "digits", "images", "--images", "3", "--method", "max"]) == 0
    calibration = Package.load("digits").calibration
    assert calibration is not None
    assert (calibration.images, calibration.method) == (3, "max")


def test_what_cannot_be_calibrated_with_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    for arguments, message in (
        (["digits", "empty"], "empty has no files that end in .png"),
        (["digits", "images", "--images", "0"], "--images 0 must be 1 or more"),
    ):
        assert main(["calibrate", *arguments]) == 1
        assert message in capsys.readouterr().err
    assert Package.load("digits").calibration is None


def test_a_net_without_preprocessing_is_calibrated_by_inputs_when_it_is_imported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Gemm", [x, w], [y], transB=1)
        for x, w, y in (("x", "a", "p"), ("p", "b", "q"), ("q", "c", "y"))
    ]
    shapes = {"a": (32, 16), "b": (16, 32), "c": (3, 16)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    onnx.save(model_of(nodes, {"x": ("N", 16)}, weights), "net.onnx")
    Path("inputs").mkdir()
    for number in range(2):
        np.save(f"inputs/{number}.npy", rng.standard_normal((9, 16)).astype(np.float32))
    assert main(["import", "net.onnx", "--out", "net", "--calibrate", "images"]) == 1
    assert "images has no files that end in .npy; the package has no preprocessing" in capsys.readouterr().err
    assert main(["import", "net.onnx", "--out", "net", "--calibrate", "inputs"]) == 0
    assert "net: calibrated with 18 images (mse); 1 layers are computed in int8" in capsys.readouterr().out
    assert main(["verify", "net", "--precision", "int8"]) == 0
