"""The page from a model to a server: its commands make packages of small files of the same names, and its flags exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from dnnclient.cli import main as dnnclient
from dnnserve.config import parse_arguments
from onnx import helper

from dnncore.cli.__main__ import main as dnncore
from dnncore.nn.package import Package
from tests.importers.caffe.nets import NETS
from tests.importers.onnx.nets import model_of

PAGE = (Path(__file__).parents[2] / "docs/serve-your-model.md").read_text()
CLASSES = 5


def _commands() -> list[list[str]]:
    return [
        shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
    ]


def test_the_pages_commands_make_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], {})
    Path("labels.txt").write_text("\n".join(f"class {number}" for number in range(CLASSES)))
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["f"])]
    weights = {"w": np.ones((3, CLASSES), np.float32)}
    model = model_of([*nodes, helper.make_node("MatMul", ["f", "w"], ["y"])], {"x": ("N", 3, 224, 224)}, weights)
    onnx.save(model, "net.onnx")
    imports = [command for command in _commands() if command[0] == "dnncore"]
    assert len(imports) == 2
    onnx_command, caffe_command = imports
    assert dnncore(onnx_command[1:]) == 0
    package = Package.load(Path("models/net/1"))
    preprocessing, labels = package.of_images
    assert (preprocessing.input_shape, len(labels)) == ((3, 224, 224), CLASSES)
    Path("deploy.prototxt").write_text(_squeezenet())
    at = caffe_command.index("--weights")
    assert dnncore([*caffe_command[1:at], *caffe_command[at + 2 :]]) == 0  # with the weights of its fillers
    assert Package.load(Path("models/caffenet/1")).output.shape == ("N", CLASSES)


def _squeezenet() -> str:
    text = NETS["squeezenet1.1"][0](16)
    return text.replace("num_output: 1000", f"num_output: {CLASSES}").replace("227", "224")


def test_the_pages_other_commands_have_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    (serve,) = [command for command in _commands() if command[0] == "dnnserve"]
    assert parse_arguments(serve[1:]).precision == "fp16"
    (classify,) = [command for command in _commands() if command[0] == "dnnclient"]
    assert dnnclient([*classify[1:-1], "no-such-photo.png"]) != 0
    assert "no-such-photo.png" in capsys.readouterr().err
