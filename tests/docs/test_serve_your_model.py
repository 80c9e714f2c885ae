"""The page from a model to a server: its commands serve, and make packages of, small files of the same names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from dnnclient.cli import main as dnnclient
from dnnserve.command_line import parse_arguments
from dnnserve.repository import model_file
from onnx import TensorProto, helper
from PIL import Image

from benchmarks.server import RunningServer
from dnncore.cli.__main__ import main as dnncore
from dnncore.nn.package import Package
from tests.importers.caffe.files import caffemodel, random_blobs, run
from tests.importers.caffe.nets import NETS
from tests.importers.onnx.nets import model_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serve-your-model.md").read_text()
COLORS = ("red", "green", "blue")


def _commands(program: str) -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    return [line[1:] for line in lines if line[0] == program]


def _program(names: str) -> str:
    """The page's block of Python that names something."""
    program: str
    (program,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if names in block)
    return program


def _served(command: Sequence[str], folder: Path) -> RunningServer:
    """One of the page's servers: its command on free ports, on the CPU."""
    at = command.index("--model") + 1
    arguments = (*command[: at - 1], *command[at + 1 :], "--devices", "cpu", "--max-batch", "2")
    return RunningServer(Path(command[at]), folder, *arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In it: what the page's commands read. net.onnx tells red, green and blue photographs apart."""
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["f"])]
    model = model_of(
        [*nodes, helper.make_node("MatMul", ["f", "w"], ["y"])], {"x": ("N", 3, 224, 224)}, {"w": np.eye(3, dtype="f4")}
    )
    onnx.save(model, "net.onnx")
    nodes = [
        helper.make_node("Cast", ["right"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["number", "axes"], ["column"]),
        helper.make_node("Add", ["left", "column"], ["sums"]),
        helper.make_node("Sub", ["left", "column"], ["differences"]),
    ]
    pair = model_of(
        nodes, {"left": ("N", 3), "right": ("N",)}, {"axes": np.array([1])}, outputs=("sums", "differences")
    )
    pair.graph.input[1].type.tensor_type.elem_type = TensorProto.INT32
    onnx.save(pair, "pair.onnx")
    text = NETS["squeezenet1.1"][0](16).replace("num_output: 1000", "num_output: 3").replace("227", "224")
    Path("deploy.prototxt").write_text(text)
    Path("net.caffemodel").write_bytes(caffemodel(random_blobs(text)))
    Path("labels.txt").write_text("\n".join(COLORS))
    Image.new("RGB", (320, 240), "green").save("photo.png")
    exec(_program("preprocess.json"), {})
    return tmp_path


def _classify(server: RunningServer, options: Sequence[str]) -> int:
    """The page's `dnnclient classify` at this server's port."""
    options = list(options)
    options[options.index("--server") + 1] = server.grpc
    return dnnclient(options)


def test_the_pages_first_command_serves_a_file_with_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve = _commands("dnnserve")[0]
    assert f"`dnnserve {shlex.join(serve)}`" in (ROOT / "README.md").read_text()
    (classify,) = _commands("dnnclient")
    with _served(serve, folder) as server:
        assert _classify(server, classify) == 0
    assert re.match(r"photo.png: green 0\.\d+, (red|blue) 0\.\d+, ", capsys.readouterr().out)


def test_the_pages_net_of_caffe_is_served(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve, (classify,) = _commands("dnnserve")[1], _commands("dnnclient")
    package = model_file(parse_arguments(serve)).package("dnnserve", served=True)
    assert package.preprocessing is not None
    x = package.preprocessing.from_bytes(Path("photo.png").read_bytes())[None]
    (expected,) = run(package.serving_model, x).values()
    assert len(set(expected[0].round(2))) > 1, "random weights, which yet tell the classes apart"
    with _served(serve, folder) as server:
        assert _classify(server, classify) == 0
    said = re.findall(r"(\w+) (0\.\d+)", capsys.readouterr().out)
    assert [label for label, _ in said] == [COLORS[index] for index in np.argsort(-expected[0])]
    np.testing.assert_allclose([float(number) for _, number in said], -np.sort(-expected[0]), atol=1e-3)


def test_the_pages_package_of_a_pytorch_model_is_served(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())  # as net.onnx
    exec(_program("save_package"), {"model": model, "labels": COLORS})
    serve, (classify,) = _commands("dnnserve")[2], _commands("dnnclient")
    with _served(serve, folder) as server:
        assert _classify(server, classify) == 0
    assert re.match(r"photo.png: green 0\.\d+, (red|blue) 0\.\d+, ", capsys.readouterr().out)


def test_the_pages_net_of_several_tensors_is_served(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *_, serve, _ = _commands("dnnserve")
    with _served(serve, folder) as server:
        exec(_program("Client").replace("127.0.0.1:8001", server.grpc), {})
    assert capsys.readouterr().out == "[[1. 1. 1.]\n [2. 2. 2.]]\n"


def test_the_pages_packages_are_made_and_named(folder: Path) -> None:
    onnx_command, caffe_command = _commands("dnncore")
    assert dnncore(onnx_command) == 0
    package = Package.load(Path("models/net/1"))
    preprocessing, labels = package.of_images
    assert (preprocessing.input_shape, labels) == ((3, 224, 224), COLORS)
    assert dnncore(caffe_command) == 0
    assert Package.load(Path("models/caffenet/1")).output.shape == ("N", len(COLORS))


def test_the_pages_server_of_a_repository_is_what_it_says() -> None:
    *_, repository = map(parse_arguments, _commands("dnnserve"))
    assert (repository.model_repository, repository.precision) == (Path("models"), "fp16")
