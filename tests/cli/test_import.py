"""From a file of another framework to answers over gRPC, by the commands that people type."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from dnnclient import Client
from onnx import helper, numpy_helper
from PIL import Image, ImageDraw, ImageFont

from benchmarks.server import RunningServer
from dnncore.cli.__main__ import main
from dnncore.nn.package import Package
from dnncore.preprocessing import Preprocessing
from tests.importers.caffe.nets import NETS
from tests.importers.onnx.nets import model_of


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _drawn(text: str) -> Image.Image:
    """Black letters on white."""
    image = Image.new("RGB", (192, 48), "white")
    ImageDraw.Draw(image).text((96, 24), text, fill="black", font=ImageFont.load_default(34), anchor="mm")
    return image


@pytest.mark.skipif(
    importlib.util.find_spec("rapidocr_onnxruntime") is None,
    reason="pip install --no-deps rapidocr-onnxruntime==1.4.4",
)
def test_a_trained_classifier_is_imported_and_served_and_gets_drawn_text_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether a line of text is upright or upside down, by a MobileNetV3 that somebody else has trained."""
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    assert found is not None
    assert found.origin is not None
    net = Path(found.origin).parent / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    half = (0.5, 0.5, 0.5)
    (tmp_path / "preprocess.json").write_text(
        json.dumps(Preprocessing.squash("bgr", 48, 192, 1 / 255, half, half).to_dict())
    )
    (tmp_path / "labels.txt").write_text("upright\nupside down\n")
    arguments = ["import", str(net), "--out", str(tmp_path / "direction"), "--name", "direction"]
    arguments += ["--shape", "x=N,3,48,192", "--labels", str(tmp_path / "labels.txt")]
    assert main([*arguments, "--preprocess", str(tmp_path / "preprocess.json")]) == 0
    said = capsys.readouterr().out
    assert "reads x: float32[N, 3, 48, 192]" in said
    assert "batches, values alone         1         8        32       256" in said
    lines = [_drawn(text) for text in ("dnncore", "kernels", "Winograd", "gradient")]
    with (
        RunningServer(tmp_path / "direction", tmp_path, "--devices", "cpu", "--max-batch", "8") as server,
        Client(server.grpc, model="direction") as client,
    ):
        upright = client.classify([_png(line) for line in lines])
        turned = client.classify([_png(line.rotate(180)) for line in lines])
    assert [answer.best.label for answer in upright] == ["upright"] * 4
    assert [answer.best.label for answer in turned] == ["upside down"] * 4


def test_what_an_import_says_of_a_net_can_be_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parameters, work and memory of two convolutions, of which one and a ReLU are one node when they are served."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"], strides=[16, 16]),
    ]
    shapes = {"w": (16, 3, 3, 3), "b": (16,), "v": (64, 16, 16, 16)}
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    onnx.save(model_of(nodes, {"x": ("N", 3, 128, 128)}, weights), tmp_path / "net.onnx")
    assert main(["import", str(tmp_path / "net.onnx"), "--out", str(tmp_path / "package")]) == 0
    lines = capsys.readouterr().out.splitlines()
    parameters = sum(array.size for array in weights.values())
    macs = 16 * 128 * 128 * (3 * 3 * 3) + 64 * 8 * 8 * (16 * 16 * 16)
    x, r, y = 3 * 128 * 128, 16 * 128 * 128, 64 * 8 * 8
    values = {"fp32": 4 * (x + r + y), "fp16": 4 * x + 2 * (r + y)}  # y as float32 lies where r was
    sizes = {"fp32": 4 * parameters, "fp16": 2 * parameters}
    assert lines[0] == f"{tmp_path / 'package'}: net"
    assert lines[1:6] == [
        "  reads x: float32[N, 3, 128, 128]",
        "  gives y: float32[N, 64, 8, 8]",
        f"  {parameters} parameters",
        f"  {macs / 1e6:.3g} MMACs (multiply-adds) per image, {2 * macs / 1e6:.3g} MFLOPs: convolutions and matrix products",
        "  memory in MB      weights  batches, values alone         1         8        32       256",
    ]
    for line, (precision, nbytes) in zip(lines[6:8], values.items(), strict=True):
        megabytes = (sizes[precision], *(batch * nbytes for batch in (1, 8, 32, 256)))
        assert line.split() == [precision, *(f"{size / 1e6:.1f}" for size in megabytes)]


def test_a_convolutional_classifier_of_caffe_becomes_a_package_with_labels(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NETS["squeezenet1.1"][0](16))
    (tmp_path / "labels.txt").write_text("\n".join(f"class {number}" for number in range(1000)))
    arguments = ["import", str(tmp_path / "net.prototxt"), "--out", str(tmp_path / "package")]
    assert main([*arguments, "--labels", str(tmp_path / "labels.txt")]) == 0
    package = Package.load(tmp_path / "package")
    assert package.name == "net"
    assert package.output.shape == ("N", 1000)
    assert package.labels is not None
    assert package.labels[-1] == "class 999"
    assert package.provenance["file"] == "net.prototxt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "net.tar", "--out", "p"], "none of a model package"),
        (["import", "none.onnx", "--out", "p"], "none.onnx"),
        (["import", "net.onnx", "--weights", "w.caffemodel", "--out", "p"], "goes with a .prototxt"),
        (["describe", "net.prototxt", "--shape", "data=3,N"], "a shape begins with N"),
        (["describe", "net.onnx", "--shape", "data=N,4"], "shapes are given for 'data', and the inputs are 'x'"),
        (["import", "net.onnx", "--out", "p", "--labels", "two.txt"], "2 labels"),
        (["import", "net.onnx", "--out", "p", "--preprocess", "two.txt"], "two.txt is not JSON"),
        (["import", "net.onnx", "--out", "p", "--preprocess", "list.json"], "must hold an object"),
        (["import", "two.onnx", "--out", "p", "--labels", "two.txt"], "has the outputs y, z; labels are for one"),
    ],
)
def test_what_cannot_be_imported_is_told_in_one_message(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    constants = {"w": np.ones((4, 3), np.float32)}
    one = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ("N", 4)}, constants)
    two = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        {"x": ("N", 4)},
        constants,
        outputs=("y", "z"),
    )
    assert numpy_helper.to_array(one.graph.initializer[0]).shape == (4, 3)
    onnx.save(one, "net.onnx")
    onnx.save(two, "two.onnx")
    Path("two.txt").write_text("a\nb\n")
    Path("list.json").write_text("[1]")
    Path("net.prototxt").write_text(NETS["lenet"][0](1))
    assert main(arguments) == 1
    assert message in capsys.readouterr().err
    assert not Path("p").exists()


def test_an_import_for_one_image_says_how_it_is_for_any_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "one.onnx", ["--out", str(tmp_path / "package")]
    onnx.save(model_of([helper.make_node("Add", ["x", "z"], ["y"])], {"x": (1, 4), "z": (1, 4)}), file)
    assert main(["import", str(file), *out]) == 0
    remedy = capsys.readouterr().out.rpartition("for any number: ")[2].split()
    assert remedy == ["--shape", "x=N,4", "--shape", "z=N,4"]
    assert main(["import", str(file), *out, *remedy]) == 0
    assert "for any number" not in capsys.readouterr().out


@pytest.mark.parametrize("shape", ["data", "data=", "=N,3", "data=N,x"])
def test_shapes_that_are_none_are_bad_arguments(shape: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["describe", "net.onnx", "--shape", shape])
    assert caught.value.code == 2
