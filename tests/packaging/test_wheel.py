"""The wheel as a user gets it: installed in an environment of its own, away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = _run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the base install: no extras, and no pip, which takes longer to install than the rest."""
    folder = tmp_path_factory.mktemp("environment")
    assert _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder).returncode == 0
    pip = (sys.executable, "-m", "pip", "--python", folder / "venv/bin/python")
    installed = _run(*pip, "install", "--quiet", "--no-compile", wheel, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return folder


def test_the_wheel_holds_the_packages_and_the_kernel_sources_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "dnncore", "dnnserve", "dnnclient", "dnnapi", wheel.name.split("-py3")[0] + ".dist-info",
    }  # fmt: skip
    assert any(name.endswith(".cuh") for name in names)
    assert "dnnapi/v1/classifier.proto" in names
    assert {"dnncore/cuda/choices/h100.jsonl", "dnncore/cuda/choices/h200.jsonl"} <= set(names)
    assert not any("test" in Path(name).parts for name in names)


@pytest.mark.parametrize("command", ["dnnserve", "dnntrain", "dnnclient"])
def test_every_command_explains_itself_on_the_base_install(environment: Path, command: str) -> None:
    shown = _run(environment / "venv/bin" / command, "--help", cwd=environment)
    assert shown.returncode == 0, shown.stderr
    assert f"usage: {command}" in shown.stdout


def test_the_library_computes_on_the_base_install(environment: Path) -> None:
    program = (
        "import numpy as np, dnncore\n"
        "with dnncore.Handle('cpu') as h:\n"
        "    x = h.upload(np.array([[-1, 2]], np.float32)); y = h.tensor(x.shape)\n"
        "    dnncore.ops.activation_forward(h, dnncore.RELU, 1.0, x, 0.0, y)\n"
        "    print(y.numpy().tolist())\n"
    )
    ran = _run(environment / "venv/bin/python", "-c", program, cwd=environment)
    assert ran.stdout.strip() == "[[0.0, 2.0]]", ran.stderr


def test_what_is_missing_is_said_with_the_remedy(environment: Path) -> None:
    python = environment / "venv/bin/python"
    served = _run(environment / "venv/bin/dnnserve", "--model", "nowhere", cwd=environment)
    assert served.returncode != 0
    assert "pip install 'dnncore[server]'" in served.stderr
    assert "Traceback" not in served.stderr
    opened = _run(python, "-c", "import dnncore; dnncore.Handle('cuda:0')", cwd=environment)
    assert "pip install 'dnncore[cuda]'" in opened.stderr
