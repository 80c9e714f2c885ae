"""The page of the command: what it tells to type is run, in the order in which it stands there."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from dnncore.cli.__main__ import main
from dnncore.nn.zoo import ZOO
from tests.importers.onnx.nets import model_of

PAGE = (Path(__file__).parents[2] / "docs/commands.md").read_text()


def test_the_pages_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (2, 4)))
    onnx.save(model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ("N", 4)}, {"w": w}), "net.onnx")
    Path("test_data_set_0").mkdir()
    for name, kind, array in (("x", "input", x), ("y", "output", x @ w)):
        np.save(f"{name}.npy", array)
        Path(f"test_data_set_0/{kind}_0.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    Path("images").mkdir()
    np.save("images/x.npy", x)  # the net has no preprocessing
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert [command[:2] for command in commands] == [
        ["dnncore", name]
        for name in [
            "import",
            "import",
            "verify",
            "verify",
            "calibrate",
            "verify",
            "describe",
            "describe",
            "describe",
            "draw",
            "draw",
        ]
    ]
    for command in commands:
        if command[-1] == "net.svg" or "net.svg" in command:
            assert main(command[1:]) == (0 if shutil.which("dot") else 1)
        else:
            assert main(command[1:]) == 0, command
    said = capsys.readouterr().out
    for line in re.findall(r"^    pass    .*", PAGE, re.MULTILINE):
        assert line.strip() in said
    assert "check y: right; largest difference" in said


def test_the_page_names_the_zoo() -> None:
    assert ", ".join(sorted(ZOO)) in PAGE
