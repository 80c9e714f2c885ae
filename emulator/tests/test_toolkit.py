"""Which toolkit is found, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from emulator import toolkit

STAND_IN = Path(toolkit.__file__).parent / "bin"


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def installed(root: Path) -> Path:
    """A folder that looks like a toolkit."""
    program(root / "nvvm" / "bin" / "cicc")
    return program(root / "bin" / "nvcc").parents[1]


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_ROOT", raising=False)


def test_the_stand_in_and_wrappers_on_path_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper, real = program(tmp_path / "wrapped" / "bin" / "nvcc").parent, installed(tmp_path / "cuda")
    monkeypatch.setenv("PATH", f"{STAND_IN}:{wrapper}:{real / 'bin'}")
    assert toolkit.real_nvcc() == real / "bin" / "nvcc"


def test_packages_of_this_interpreter_are_a_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = installed(tmp_path / "nvidia" / "cu13")
    monkeypatch.setenv("PATH", str(STAND_IN))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path) if name == "purelib" else "")
    monkeypatch.setattr(toolkit, "_DEFAULT", tmp_path / "nowhere")
    assert toolkit.cuda_root() == packages


def test_a_chosen_folder_that_is_no_toolkit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_ROOT", str(tmp_path))
    with pytest.raises(toolkit.ToolkitError, match=f"CUDA_ROOT is {tmp_path}"):
        toolkit.cuda_root()
    command = [sys.executable, "-m", "emulator.build", "--out", str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.startswith("error: CUDA_ROOT is ")) == (1, True), run.stderr


def test_what_keeps_the_emulator_from_being_built_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolkit.why_not() == ""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert f"there is no {tmp_path / 'Python.h'}" in toolkit.why_not()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "g++" in toolkit.why_not()
