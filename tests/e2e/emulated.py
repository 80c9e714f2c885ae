"""Settings under which a process that a test starts finds the emulated driver as it would find the real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import EMULATOR

__all__ = ["use_emulator"]


def use_emulator(monkeypatch: pytest.MonkeyPatch, *, devices: int, build: str = "check", faults: str = "") -> None:
    """Set the environment for child processes; nothing changes on a machine whose devices are real."""
    if EMULATOR is None:
        return
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(EMULATOR).parent), prepend=os.pathsep)
    monkeypatch.setenv("EMU_DEVICES", str(devices))
    monkeypatch.setenv("EMU_BUILD", build)
    monkeypatch.setenv("EMU_FAULTS", faults)
