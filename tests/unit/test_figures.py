"""Rankings for devices that are not here, and the figures of those that nobody knows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

import dnncore
from dnncore import ConvolutionDescriptor, Handle, Preference, TensorDescriptor, ops
from dnncore.backend import Offer
from dnncore.cuda.absent import AbsentDevice
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.figures import of_device
from dnncore.cuda.runtime import driver
from dnncore.descriptors import ActivationDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BackendUnavailableError
from dnncore.figures import A100, CPU, GPUS, H100, H200, DeviceFigures, Maths
from dnncore.plan import rank
from dnncore.problems import ConvolutionProblem, Direction
from tests.cases import CASES


def _convolution(dtype: str = "float32") -> ConvolutionProblem:
    x, w, y = (TensorDescriptor.packed(shape, dtype) for shape in ((64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56)))
    return ConvolutionProblem(Direction.FORWARD, x, w, y, ConvolutionDescriptor.make(padding=1))


def test_rates_are_those_of_the_data_sheets() -> None:
    tera = 2e-12  # two operations per product
    assert H200.products_per_second(Maths.FP32) * tera == pytest.approx(66.9, rel=0.01)
    assert H100.products_per_second(Maths.FP16) * tera == pytest.approx(989, rel=0.09)  # at the clock of fp32 work
    assert A100.products_per_second(Maths.FP16) * tera == pytest.approx(312, rel=0.01)
    assert A100.products_per_second(Maths.of(DType.FLOAT32)) * tera == pytest.approx(19.5, rel=0.01)
    assert CPU.products_per_second(Maths.TF32) == 0


def test_a_ranking_needs_no_device() -> None:
    ranked = rank(_convolution(), AbsentDevice(H200), Preference())
    usable = [found.offer.seconds for found in ranked if found.status is None and found.offer is not None]
    assert len(usable) > 3
    assert usable == sorted(usable)
    assert ranked[0].name in {"fft_tiling_3xtf32", "winograd_4x4"}  # which take as long as each other


@pytest.mark.parametrize("slower", [A100, H100], ids=["A100", "H100"])
def test_no_estimate_is_lower_on_a_slower_device(slower: DeviceFigures) -> None:
    for problem in dict.fromkeys(case.problem for case in CASES):
        for algorithm in algorithms_for(problem):
            fast, slow = algorithm.offer(problem, H200), algorithm.offer(problem, slower)
            if isinstance(fast, Offer) and isinstance(slow, Offer):
                assert fast.seconds <= slow.seconds * 1.001, f"{algorithm.name} on {problem}"


def test_the_ranking_follows_the_figures() -> None:
    def names(figures: DeviceFigures) -> list[str]:
        return [found.name for found in rank(_convolution(), AbsentDevice(figures), Preference())]

    usual, dear = names(H200), names(replace(H200, launch_seconds=1e-3))
    assert usual.index("winograd_nonfused") < usual.index("implicit_gemm")
    assert dear.index("winograd_nonfused") > dear.index("implicit_gemm")  # three launches for one


def test_a_device_that_is_not_there_plans_and_refuses_to_run() -> None:
    shape = (64, 64, 56, 56)
    with Handle(AbsentDevice(H200)) as handle, handle.tensor(shape) as x, handle.tensor(shape) as y:
        relu = ActivationDescriptor.make("relu")
        with handle.record() as program:
            ops.activation_forward(handle, relu, 1.0, x, 0.0, y)
        assert "1 steps" in program.describe()
        assert x.pointer + x.nbytes <= y.pointer
        refused: tuple[Callable[[], object], ...] = (program.run, program.capture, x.numpy, handle.record_event)
        for run in refused:
            with pytest.raises(BackendUnavailableError, match="of which only the figures are known"):
                run()


def _shift(node: ast.AST) -> int | None:
    """What a shift of one number by another comes to."""
    match node:
        case ast.BinOp(
            left=ast.Constant(value=int() as value), op=ast.LShift(), right=ast.Constant(value=int() as bits)
        ):
            return value << bits
    return None


def _numbers(node: ast.AST) -> Iterator[float]:
    """What an expression holds, be it within calls and containers; shifts are worked out."""
    shifted = _shift(node)
    if shifted is not None:
        yield shifted
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            yield node.value
    else:
        for each in ast.iter_child_nodes(node):
            yield from _numbers(each)


def _constants(source: str) -> Iterator[tuple[str, float]]:
    """Numbers in the constants of a module and of its classes, by their names; of names that are given values together, each with
    all of them.
    """
    module = ast.parse(source)
    bodies = [module.body, *(each.body for each in ast.walk(module) if isinstance(each, ast.ClassDef))]
    for statement in (each for body in bodies for each in body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            yield from ((ast.unparse(target), number) for number in _numbers(statement.value))


def _settings(source: str) -> Iterator[tuple[str, float]]:
    """Numbers that functions are called with by name, wherever that is."""
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.keyword) and each.arg is not None and isinstance(each.value, ast.Constant):
            yield from ((each.arg, number) for number in _numbers(each.value))


_OF_MODELS = {
    float(value)
    for model in GPUS.values()
    for value in (getattr(model, field.name) for field in fields(model))
    if isinstance(value, int | float)
}
"""Multiprocessors, what each holds, clocks, bytes and rates of GPUs."""

_OF_DEVICES = ("SECONDS", "PER_MULTIPROCESSOR", "RESIDENT")
"""In the names of constants that are times, or say how much a multiprocessor has at a time."""

_NO_FIGURES = {("nn/calibration.py", "_BINS"), ("cuda/convolution/wgmma_launch.py", "_SECONDS_AND_BUSY")}
"""Constants that are as large as a figure, or called like one, and are none."""


def _device_numbers(source: str) -> list[tuple[str, float]]:
    """Constants that are times, or figures of a GPU, or most of its level-2 cache, or what a multiprocessor has; and settings that
    are figures of a GPU.
    """
    caches = [model.l2_bytes for model in GPUS.values()]
    return [
        (name, number)
        for name, number in _constants(source)
        if any(part in name for part in _OF_DEVICES)
        or number in _OF_MODELS
        or any(0.25 * cache <= number <= cache for cache in caches)
    ] + [(name, number) for name, number in _settings(source) if number in _OF_MODELS]


def test_no_other_module_of_kernels_and_nets_knows_a_devices_numbers() -> None:
    """Times are said in clocks, launches and shares of rates; caches in shares, too; blocks by the registers that they take."""
    package = Path(dnncore.__file__).parent
    sources = [path for folder in ("cuda", "nn") for path in sorted((package / folder).rglob("*.py"))]
    assert len(sources) > 100
    found = {
        (str(path.relative_to(package)), name) for path in sources for name, _ in _device_numbers(path.read_text())
    }
    assert found == _NO_FIGURES


@pytest.mark.parametrize(
    "line",
    [
        "_ROUND_SECONDS = 0.6e-6",
        "_A, _SMS = 3, 132",
        "_PARTS: int = 24 << 20",
        "_RATES = {1: 4.26e12}",
        'THREAD, BLOCK = Team("thread", 1, 2048), Team("block", 256, 8)',
        'def all(cls):\n    return cls("thread", parts_per_multiprocessor=2048)',
        "_REGISTERS = 65536",
        "class Cut:\n    registers: ClassVar[int] = 64 << 10",
        "_BLOCKS_PER_MULTIPROCESSOR = 8",
        '_RESIDENT_OF_MAXIMA = {("vectors", 3): 256}',
    ],
)
def test_what_a_constant_says_of_a_device_is_seen(line: str) -> None:
    assert _device_numbers(line)


def test_a_constant_that_says_nothing_of_a_device_is_not_seen() -> None:
    assert not _device_numbers("_THREADS = 256\n_OF_RATE, _MAX_INDEX = 0.6, 2**31 - 1\n_MOST = 1 << 31")
    assert not _device_numbers("_REGISTERS = {123: 76}\nblocks = most(threads=128)")


@pytest.mark.parametrize(
    ("threads", "registers", "blocks"),
    [
        (128, 32, 16),  # by threads
        (128, 59, 8),  # by registers, of which each thread has 64
        (256, 120, 2),
        (100, 120, 4),  # as many as four warps have
        (1024, 65, 0),
    ],
)
def test_a_multiprocessor_has_as_many_blocks_as_it_has_threads_and_registers_for(
    threads: int, registers: int, blocks: int
) -> None:
    assert H200.resident_blocks(threads, registers) == blocks
    narrow = replace(H200, threads_per_multiprocessor=1536)  # of sm_86 and sm_120
    assert narrow.resident_blocks(threads, registers) == min(blocks, 1536 // (-(-threads // 32) * 32))


@pytest.mark.parametrize(
    ("capability", "memory_clock", "nearest", "bytes_per_second"),
    [
        ((12, 0), 14_000_000, H100, 0.89 * 2 * 14e9 * 512 / 8),
        ((12, 0), 0, H100, H100.bytes_per_second / 2),  # not told, on half as many multiprocessors
        ((8, 6), 9_751_000, A100, 0.89 * 2 * 9.751e9 * 512 / 8),
    ],
    ids=["newer", "newer-without-a-memory-clock", "older"],
)
def test_a_device_that_nobody_knows_has_the_drivers_figures_and_rates_of_the_nearest_older_model(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    memory_clock: int,
    nearest: DeviceFigures,
    bytes_per_second: float,
) -> None:
    told = {
        "MULTIPROCESSOR_COUNT": 66,
        "GLOBAL_MEMORY_BUS_WIDTH": 512,
        "MEMORY_CLOCK_RATE": memory_clock,
        "CLOCK_RATE": 2_400_000,
        "MAX_THREADS_PER_MULTIPROCESSOR": 1536,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 99 << 10,
        "L2_CACHE_SIZE": 96 << 20,
    }
    monkeypatch.setattr(driver, "compute_capability", lambda _index: capability)
    monkeypatch.setattr(driver, "attribute", lambda _index, name: told[name])
    found = of_device.__wrapped__(0, "compute_80")
    assert found.bytes_per_second == pytest.approx(bytes_per_second)
    assert replace(found, bytes_per_second=0.0) == DeviceFigures(
        "compute_80",
        66,
        1536,
        65536,
        2.4e9,
        nearest.products_per_clock,
        99 << 10,
        96 << 20,
        0.0,
        nearest.launch_seconds,
    )


def test_a_device_that_tells_no_clock_and_no_cache_has_those_of_the_nearest_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"MULTIPROCESSOR_COUNT": 66, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 99 << 10}
    monkeypatch.setattr(driver, "compute_capability", lambda _index: (12, 0))
    monkeypatch.setattr(driver, "attribute", lambda _index, name: told.get(name, 0))
    found = of_device.__wrapped__(0, "compute_80")
    assert (found.clock_hz, found.l2_bytes) == (H100.clock_hz, H100.l2_bytes)
    assert found.bytes_per_second == pytest.approx(H100.bytes_per_second / 2)


def test_a_known_model_that_runs_ptx_has_its_figures_and_starts_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"MULTIPROCESSOR_COUNT": 132, "GLOBAL_MEMORY_BUS_WIDTH": 6144, "MEMORY_CLOCK_RATE": 3_201_000}
    monkeypatch.setattr(driver, "compute_capability", lambda _index: (9, 0))
    monkeypatch.setattr(driver, "attribute", lambda _index, name: told[name])
    assert of_device.__wrapped__(0, "sm_90a") == H200
    found = of_device.__wrapped__(0, "compute_80")
    assert found == replace(H200, architecture="compute_80")
    assert (H200.starts_early, found.starts_early) == (True, False)
