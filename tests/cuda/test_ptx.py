"""Devices that no cubin was built for: their driver compiles PTX. So does a GPU's whose cubins are taken away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dnncore.backend import Offer
from dnncore.cuda import build
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.calls import Calls, KernelCall, WhereAligned
from dnncore.cuda.runtime import jit
from dnncore.cuda.unit import Unit
from dnncore.figures import H200
from tests.cases import CASES
from tests.conftest import GPU

BY_PTX = replace(H200, architecture=jit.FORWARD)
RUNS = (
    ("matmul-tiles", "gemm"),
    ("convolution-forward-fp16-nhwc", "implicit_gemm"),
    ("winograd-forward-groups", "winograd_4x4"),
    ("softmax-forward-accurate-instance-images", "block_per_row"),
    ("inverted-residual-halved-bf16", "on_chip"),
)
"""Cases and algorithms: loops of fp32, mma, cp.async, shuffles, and a kernel that starts early where it may."""

NEWER = {} if GPU else {"EMU_COMPUTE_CAPABILITY": "12.0"}
"""A GPU is what it is, and only its cubins are missing; the emulated one says that it is something that nobody built for."""

IN_A_PROCESS = """
import ctypes, os, subprocess, sys
if "DNN_EMU_LIB" in os.environ: ctypes.CDLL(os.environ["DNN_EMU_LIB"])
from dnncore import Handle
from dnncore.cuda.runtime import jit

def no_compiler(*_arguments, **_options): raise AssertionError("a compiler was run")
jit.Compiler.compile = no_compiler
"""
CHECK = """
from tests.cases import CASES
from tests.ops.harness import check
cases = {case.name: case for case in CASES}
with Handle("cuda:0") as handle:
    print(handle.info.compute_capability, handle.device.figures.architecture)
    for run in sys.argv[1:]:
        name, algorithm = run.split(" ")
        check(handle, cases[name], algorithm)
        print(run)
"""


def kernels(calls: Calls) -> Iterator[KernelCall]:
    """All that may be launched, whatever is aligned."""
    for call in calls:
        if isinstance(call, WhereAligned):
            yield from kernels(call.aligned)
            yield from kernels(call.otherwise)
        elif isinstance(call, KernelCall):
            yield call


def test_nothing_that_is_offered_for_ptx_starts_early_or_is_of_another_architecture() -> None:
    offers = 0
    for case in CASES:
        for algorithm in algorithms_for(case.problem):
            offer = algorithm.offer(case.problem, BY_PTX)
            if isinstance(offer, Offer):
                offers += 1
                for call in kernels(offer.prepare()):
                    what = f"{case.name} by {algorithm.name}: {call.unit.entry}"
                    assert not call.starts_early, f"{what} waits for nothing: griddepcontrol is not in PTX for sm_80"
                    assert call.unit.why_not_on(jit.FORWARD) is None, what
    assert offers > len(CASES)


@pytest.fixture(scope="module")
def prebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with PTX of what the cases launch, and no cubins."""
    cases = {case.name: case for case in CASES}
    found: dict[Unit, None] = {}
    for name, wanted in RUNS:
        problem = cases[name].problem
        (algorithm,) = (one for one in algorithms_for(problem) if one.name == wanted)
        offer = algorithm.offer(problem, BY_PTX)
        assert isinstance(offer, Offer), offer
        found.update(dict.fromkeys(call.unit for call in kernels(offer.prepare())))
    compiler, folder = jit.find_compiler(), tmp_path_factory.mktemp("prebuilt")
    assert compiler is not None
    build.build(tuple(found), [jit.FORWARD], folder, 2, compiler)
    return folder


def run(code: str, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python where no nvcc is found, with an empty cache; the emulated driver's translator needs g++."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("g++", "as", "ld"):
        found = shutil.which(name)
        if found is not None and not (tools / name).exists():
            (tools / name).symlink_to(found)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    inherited = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    return subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS + code, *arguments],
        env=inherited
        | {"PATH": str(tools), "PYTHONPATH": path, "DNNCORE_CUBIN_DIR": str(folder)}
        | {"DNNCORE_CACHE_DIR": str(folder / "cache")}
        | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.cuda
@pytest.mark.timeout(300)  # as many compilers as kernels, on cores that may have other work
def test_a_device_that_nobody_built_for_runs_ptx_and_no_compiler(prebuilt: Path) -> None:
    wanted = [" ".join(one) for one in RUNS]
    done = run(CHECK, prebuilt, *wanted, **NEWER)
    assert done.returncode == 0, done.stderr
    device, *checked = done.stdout.splitlines()
    assert checked == wanted
    assert device.endswith(jit.FORWARD)
    assert GPU or device.startswith("(12, 0)")
    assert not (prebuilt / "cache").exists()
    (said,) = (line for line in done.stderr.splitlines() if "PTX" in line)
    assert said.startswith("cuda:0 has compute capability")
    assert "its driver compiles PTX for compute_80" in said


LOAD = """
from dnncore.cuda.runtime import kernels
from dnncore.cuda.runtime.context import retained
from dnncore.cuda.unit import Unit
with Handle("cuda:0"): kernels.of_context(retained(0)).function(Unit(sys.argv[1], sys.argv[2]))
"""
UNIT = Unit('extern "C" __global__ void plain() {}\n', "plain")


@pytest.fixture
def built_before(tmp_path: Path) -> Path:
    """A folder whose index says that it has PTX; for `UNIT` it has what a test puts there."""
    index = {"images": [{"file": "another.ptx.xz", "entry": "another", "arch": jit.FORWARD, "nbytes": 1}]}
    (tmp_path / jit.INDEX).write_text(json.dumps(index))
    return tmp_path


@pytest.mark.cuda
def test_a_kernel_whose_ptx_was_not_built_is_named_with_the_way_out(built_before: Path) -> None:
    done = run(LOAD, built_before, UNIT.source, UNIT.entry, **NEWER)
    assert done.returncode == 1
    assert "BackendUnavailableError: no PTX of plain" in done.stderr
    assert f"python -m dnncore.cuda.build --arch {jit.FORWARD} --out DIR" in done.stderr


@pytest.mark.cuda
def test_ptx_that_the_driver_refuses_is_an_error_with_its_words(built_before: Path) -> None:
    text = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry (oops\n"
    (built_before / jit.prebuilt_name(UNIT, jit.FORWARD)).write_bytes(jit.packed(text))
    done = run(LOAD, built_before, UNIT.source, UNIT.entry, **NEWER)
    assert done.returncode == 1
    assert "CompilationError: the driver does not compile the PTX of plain" in done.stderr
    assert "CUDA_ERROR_INVALID_PTX" in done.stderr
    assert "line 4" in done.stderr  # what the driver's compiler printed


@pytest.mark.cuda
@pytest.mark.skipif(GPU, reason="the emulated device says what it is told to")
def test_a_device_older_than_all_kernels_is_refused(tmp_path: Path) -> None:
    done = run('Handle("cuda:0")', tmp_path, EMU_COMPUTE_CAPABILITY="7.5")
    assert done.returncode == 1
    assert "NotSupportedError: cuda:0 has compute capability 7.5; kernels are made for 8.0 and newer" in done.stderr


@pytest.mark.cuda
@pytest.mark.skipif(GPU, reason="the emulated device says what it is told to")
def test_a_device_that_is_not_known_has_figures_of_the_nearest_older_model(tmp_path: Path) -> None:
    code = 'from dnncore.figures import *\nf = Handle("cuda:0").device.figures\n'
    code += "print(f.architecture, f.products_per_clock == H100.products_per_clock, f.starts_early)"
    done = run(code, tmp_path, EMU_COMPUTE_CAPABILITY="12.0")
    assert (done.returncode, done.stdout) == (0, "sm_120 True True\n"), done.stderr
