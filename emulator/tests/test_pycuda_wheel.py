"""What the build of PyCUDA's wheel does around the compiler: what it refuses, when it has nothing to do, what it checks."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from emulator import pycuda_wheel


@pytest.fixture
def cuda(tmp_path: Path) -> Path:
    include = tmp_path / "cuda" / "include"
    include.mkdir(parents=True)
    (include / "cuda.h").write_text("#define CUDA_VERSION 13000\n")
    (include / "cudaProfiler.h").write_text("")
    return include.parent


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libcuda.so.1").write_text("")
    return folder


def shared_object(path: Path, source: str) -> Path:
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_a_wheel_that_is_there_is_not_built_again(cuda: Path, library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / pycuda_wheel._key(cuda / "include" / "cuda.h")
    folder.mkdir(parents=True)
    wheel = folder / "pycuda-2026.1-py3-none-any.whl"
    wheel.write_text("")
    assert pycuda_wheel.build(library, cuda, tmp_path / "out", 1) == wheel
    assert list((tmp_path / "out").iterdir()) == [folder]


def test_wheels_for_two_toolkits_are_kept_apart(cuda: Path) -> None:
    header = cuda / "include" / "cuda.h"
    before = pycuda_wheel._key(header)
    header.write_text("#define CUDA_VERSION 13020\n")
    assert pycuda_wheel._key(header) != before


def test_what_is_missing_is_named_with_where_it_comes_from(cuda: Path, library: Path, tmp_path: Path) -> None:
    (cuda / "include" / "cudaProfiler.h").unlink()
    with pytest.raises(FileNotFoundError, match=r"cudaProfiler\.h: it comes with nvidia-cuda-profiler-api"):
        pycuda_wheel.build(library, cuda, tmp_path / "out", 1)
    (library / "libcuda.so.1").unlink()
    with pytest.raises(FileNotFoundError, match=r"libcuda\.so\.1: build it with `python -m emulator\.build`"):
        pycuda_wheel.build(library, cuda, tmp_path / "out", 1)


def test_the_sources_of_boost_python_become_one_file_that_includes_them(tmp_path: Path) -> None:
    sources = tmp_path / "libs" / "python" / "src"
    (sources / "object").mkdir(parents=True)
    for name in ("list.cpp", "object/class.cpp"):
        (sources / name).write_text("")
    pycuda_wheel._unite(sources)
    assert [path.name for path in (tmp_path / "libs").rglob("*.cpp")] == ["together.cpp"]
    lines = (sources / "together.cpp").read_text().splitlines()
    assert lines == ['#include "python_parts/list.cpp"', '#include "python_parts/object/class.cpp"']
    assert all((tmp_path / line.split('"')[1]).is_file() for line in lines)


def test_sources_with_the_same_headers_become_one_that_includes_the_others(tmp_path: Path) -> None:
    names = ("wrapper/all.cpp", "wrapper/pool.cpp", "cpp/driver.cpp")
    file, *others = (tmp_path / name for name in names)
    for path in (file, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"int {path.stem}();\n")
    pycuda_wheel._gather(file, ("pool.cpp", "../cpp/driver.cpp"))
    assert [path.read_text() for path in others] == ["", ""]
    first, *lines = file.read_text().split("\n\n")
    assert first == "int all();"
    included = [(file.parent / line.split('"')[1]).read_text() for line in lines]
    assert included == ["int pool();\n", "int driver();\n"]


def test_a_wheel_that_needs_what_the_driver_lacks_is_refused(tmp_path: Path) -> None:
    extension = shared_object(tmp_path / "_driver.so", "int cuInit(int); int start(void) { return cuInit(0); }")
    wheel = tmp_path / "pycuda.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(extension, "pycuda/_driver.so")
    complete = shared_object(tmp_path / "complete.so", "int cuInit(int flags) { return flags; }")
    empty = shared_object(tmp_path / "empty.so", "")
    pycuda_wheel._check(wheel, complete, tmp_path / "first", os.environ)
    with pytest.raises(RuntimeError, match="undefined symbol: cuInit"):
        pycuda_wheel._check(wheel, empty, tmp_path / "second", os.environ)


def test_the_command_says_in_a_line_what_went_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "emulator.pycuda_wheel", "--lib", str(tmp_path), "--out", str(tmp_path / "out")]
    environ = os.environ | {"CUDA_ROOT": str(tmp_path / "nowhere")}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("error: CUDA_ROOT is ")
    assert run.stdout == ""
