"""The README's commands, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.server import RunningServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found, f"README has no {language} block"
    return found[1]


def _environment() -> dict[str, str]:
    """A newcomer's: no emulated driver."""
    kept = {name: value for name, value in os.environ.items() if name != "DNN_EMU_LIB"}
    return kept | {"PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.mark.timeout(300)
@pytest.mark.skipif(not (ROOT / ".venv/.demo").exists(), reason="not installed through make")
def test_make_demo_trains_serves_and_finds_the_same_answers() -> None:
    ran = subprocess.run(
        ["make", "demo"], cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    figures = dict(re.findall(r"^   (\w+ accuracy|requests|devices)\s+(.*)$", ran.stdout, re.MULTILINE))
    trained, served = (float(figures[f"{kind} accuracy"].split("%")[0]) for kind in ("trained", "served"))
    assert trained == served >= 97
    assert "3590 answered, 0 failed" in figures["requests"]


def test_the_python_example_runs() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _block("python")], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.strip() == "(8, 16, 16, 16)", ran.stderr


def test_the_commands_train_serve_and_ask(tmp_path: Path) -> None:
    train, serve, classify, load = _block("sh").strip().splitlines()
    (tmp_path / "examples").symlink_to(ROOT / "examples")

    def run(line: str, *extra: str) -> str:
        command = [*shlex.split(line), *extra]
        ran = subprocess.run(
            command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=100, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    # Shorter than a user's run, and on ports of its own; everything else as it stands.
    assert "package: runs/mine/package" in run(train, "training.epochs=1", "device=cpu")
    _, flag, package = shlex.split(serve)
    assert flag == "--model"
    with RunningServer(tmp_path / package, tmp_path, "--devices", "cpu") as server:
        asked = run(classify.replace("127.0.0.1:8001", server.grpc))
        assert asked.startswith("examples/seven.png: "), asked
        loaded = run(load.replace("127.0.0.1:8001", server.grpc))
        assert "images/s" in loaded
