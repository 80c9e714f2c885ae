"""Objects of the emulated driver are compiled once for the same sources and tools, wherever these lie."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator import build as driver
from emulator.driver import stubs


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit with an empty cuda.h; the driver consists of the two files of a checkout, and of tables that are empty too."""

    def tables(folder: Path, cuda: Path, objects: Sequence[Path]) -> Path:
        path = folder / "driver_tables.cpp"
        path.write_text("")
        return path

    monkeypatch.setattr(driver, "_STANDARD", ("cuda.h",))
    monkeypatch.setattr(stubs, "write", tables)
    root = tmp_path / "cuda"
    (root / "include").mkdir(parents=True)
    (root / "include" / "cuda.h").write_text("")
    return root


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    return tmp_path / "objects"


def checkout(folder: Path, value: int = 1) -> Path:
    for name, text in (
        ("runtime/one.cpp", f"int one() {{ return {value}; }}"),
        ("driver/two.cpp", "int two() { return 2; }"),
    ):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return folder


def built(root: Path, cuda: Path, objects: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Build a checkout; names of the objects that were compiled for it."""
    before = set(objects.glob("*.o"))
    monkeypatch.setattr(driver, "_ROOT", root)
    assert driver.build(root / "out", cuda, 1, objects).is_file()
    return {path.name.partition("-")[0] for path in set(objects.glob("*.o")) - before}


def test_another_checkout_of_the_same_sources_compiles_nothing(
    cuda: Path, objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built(checkout(tmp_path / "first"), cuda, objects, monkeypatch) == {"one", "two", "driver_tables"}
    assert built(checkout(tmp_path / "second"), cuda, objects, monkeypatch) == set()
    assert built(checkout(tmp_path / "third", value=3), cuda, objects, monkeypatch) == {"one"}


def test_another_toolkit_or_compiler_compiles_everything(
    cuda: Path, objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = built(checkout(tmp_path / "first"), cuda, objects, monkeypatch)
    (cuda / "include" / "cuda.h").write_text("#define CUDA_VERSION 13020\n")
    assert built(checkout(tmp_path / "second"), cuda, objects, monkeypatch) == everything
    run = driver._run
    monkeypatch.setattr(driver, "_run", lambda command: run(command) + ("99.1" if "--version" in command else ""))
    assert built(checkout(tmp_path / "third"), cuda, objects, monkeypatch) == everything


def test_objects_of_other_sources_go_after_a_week(
    cuda: Path, objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(checkout(tmp_path / "first"), cuda, objects, monkeypatch)
    (old,) = objects.glob("one-*.o")
    built(checkout(tmp_path / "second", value=2), cuda, objects, monkeypatch)
    assert old.exists()
    long_ago = time.time() - 8 * 24 * 3600
    for path in objects.glob("*.o"):
        os.utime(path, (long_ago, long_ago))
    built(checkout(tmp_path / "third", value=3), cuda, objects, monkeypatch)
    assert {path.name.partition("-")[0] for path in objects.glob("*.o")} == {"one", "two", "driver_tables"}
    assert not old.exists()
