"""What is compiled for the checks is kept under a name that tells of all that it was made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.conformance import compiler

NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "$(cat {folder}/version) $EMU_BUILD"; exit; fi
echo "$@" >> {folder}/runs
while [ "$1" != -o ]; do shift; done
cp "$3" "$2"
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each run of an nvcc whose version is what the file beside it says."""
    tool = tmp_path / "nvcc"
    tool.write_text(NVCC.format(folder=tmp_path))
    tool.chmod(0o755)
    (tmp_path / "version").write_text("13.0")
    monkeypatch.setattr(compiler, "compiler", lambda: str(tool))
    monkeypatch.setenv("EMU_BUILD", "check")
    compiler._version.cache_clear()
    return tmp_path / "runs"


def count(runs: Path) -> int:
    return len(runs.read_text().splitlines())


def test_a_source_is_compiled_once_for_each_compiler_and_mode(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    assert compiler.compile_source("a", ".cu", made) == b"a"
    assert compiler.compile_source("a", ".cu", made) == b"a"
    assert count(runs) == 1
    compiler.compile_source("b", ".cu", made)
    compiler.compile_source("a", ".ptx", made)
    assert count(runs) == 3
    monkeypatch.setenv("EMU_BUILD", "fast")
    compiler.compile_source("a", ".cu", made)
    assert count(runs) == 4
    (tmp_path / "version").write_text("13.1")
    compiler._version.cache_clear()  # another process
    compiler.compile_source("a", ".cu", made)
    assert count(runs) == 5


def test_a_compiler_that_says_nothing_is_named(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "nvcc").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(compiler.CompileError, match=r"nvcc --version for the mode 'check': .*exit status 3"):
        compiler.compile_source("a", ".cu", tmp_path / "made")
