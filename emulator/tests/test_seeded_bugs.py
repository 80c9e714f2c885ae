"""The checker finds every class of bug, and says nothing when the bug is taken out.

The kernels of `bugs/*.cu` take a last argument that plants a bug; with 0 each is right. A case names the kernel, what it is
launched with, and what the report must say.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from emulator.conformance.compiler import compile_source
from emulator.conformance.cuda import Buffer, CudaError, Driver, TensorMap, encode_tiled

pytestmark = pytest.mark.skipif(
    os.environ.get("EMU_BUILD", "check") != "check" or "DNN_EMU_LIB" not in os.environ,
    reason="needs the emulated driver with checks: run `make test`",
)

FOLDER = Path(__file__).parent / "bugs"
FLOAT16 = 6  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16


class Bench:
    """A context of its own, kernels of one file, and memory. A bug leaves the context with a sticky error: it is thrown away."""

    def __init__(self, file: str, images: Path) -> None:
        self.driver = Driver()
        header = FOLDER / "ptx.cuh"
        source = (FOLDER / f"{file}.cu").read_text().replace('"ptx.cuh"', f'"{header}"')
        age = hashlib.sha256(header.read_bytes()).hexdigest()  # images are kept by the text of their source
        self._module = self.driver.load(compile_source(f"{source}// {age}\n", ".cu", images))

    def floats(self, count: int) -> Buffer:
        """0, 1, 2, ..."""
        buffer = self.driver.allocate(count * 4)
        self.driver.write(buffer, np.arange(count, dtype=np.float32))
        return buffer

    def halfs(self, count: int) -> Buffer:
        """0, 1, ... 63, 0, 1, ..."""
        buffer = self.driver.allocate(count * 2)
        self.driver.write(buffer, (np.arange(count) % 64).astype(np.float16))
        return buffer

    def zeros(self, count: int) -> Buffer:
        """As integers or floats."""
        buffer = self.driver.allocate(count * 4)
        self.driver.fill(buffer, 0)
        return buffer

    def map_of_halfs(self, buffer: Buffer, rows: int) -> TensorMap:
        """Boxes of 16 x 16 out of a matrix of `rows` x 16."""
        tensor_map, code = encode_tiled(self.driver, FLOAT16, buffer.address, (16, rows), (32,), (16, 16))
        assert code == 0
        return tensor_map

    def launch(self, name: str, grid: int, block: int, arguments: Sequence[object], shared: int = 0) -> None:
        """Launch a kernel and wait for it."""
        self.driver.launch(self.driver.function(self._module, name), grid, block, arguments, shared=shared)
        self.driver.synchronize()

    def launch_behind(self, first: str, name: str, block: int, arguments: Sequence[object]) -> None:
        """Launch a kernel and, allowed to begin before that has ended, a second one that takes its output."""
        self.driver.launch(self.driver.function(self._module, first), 1, block, arguments[:1])
        self.driver.launch(self.driver.function(self._module, name), 1, block, arguments, programmatic=True)
        self.driver.synchronize()

    def close(self) -> None:
        """Throw the context away, with whatever error it has."""
        self.driver.code("cuDevicePrimaryCtxReset_v2", self.driver.device)


Run = Callable[["Bench", int], None]
"""Launches a kernel with a bug's number; 0 is none."""


@dataclass(frozen=True)
class Bug:
    """One seeded bug.

    Args:
        name: The kernel.
        file: Of `bugs/`, without the suffix.
        report: A regular expression for the report.
        run: Prepares memory and launches the kernel with the bug's number.
        number: The bug that is planted; kernels with several number them.
    """

    name: str
    file: str
    report: str
    run: Run
    number: int = 1

    def __str__(self) -> str:
        return f"{self.file}-{self.name}-{self.number}"


def simple(grid: int, block: int, inputs: int, outputs: int, *extra: int, shared: int = 0) -> Callable[[str], Run]:
    """A kernel of (input?, output, extra..., bug)."""

    def of(name: str) -> Run:
        def run(bench: Bench, bug: int) -> None:
            source = [bench.floats(inputs)] if inputs else []
            bench.launch(name, grid, block, [*source, bench.zeros(outputs), *extra, bug], shared)

        return run

    return of


def bug(name: str, file: str, report: str, how: Callable[[str], Run], number: int = 1) -> Bug:
    """A bug whose kernel is launched in a plain way."""
    return Bug(name, file, report, how(name), number)


def freed_memory(bench: Bench, bug: int) -> None:
    x, y = bench.floats(32), bench.zeros(32)
    if bug:
        bench.driver.free(x)
    bench.launch("add_one", 1, 32, [x, y])


def shared_of_an_earlier_launch(bench: Bench, bug: int) -> None:
    bench.launch("shared_of_an_earlier_launch", 1, 32, [bench.zeros(32), 1000], 4096)
    bench.launch("shared_of_an_earlier_launch", 1, 32, [bench.zeros(32), 1000 if bug else 0], 128)


def uninitialised_global(bench: Bench, bug: int) -> None:
    x = bench.driver.allocate(128) if bug else bench.floats(32)
    bench.launch("add_one", 1, 32, [x, bench.zeros(32)])


def last_block(bench: Bench, bug: int) -> None:
    bench.launch("last_block_sums", 4, 32, [bench.floats(4), bench.zeros(4), bench.zeros(1), bench.zeros(1), bug])


def dependent_launch(bench: Bench, bug: int) -> None:
    bench.launch_behind("produce", "consume", 32, [bench.zeros(32), bench.zeros(32), bug])


def tensor_ring(bench: Bench, bug: int) -> None:
    bench.launch("ring", 1, 64, [bench.map_of_halfs(bench.halfs(16 * 16 * 6), 96), bench.zeros(32), 6, bug])


def tensor_box(bench: Bench, bug: int) -> None:
    bench.launch("box", 1, 32, [bench.map_of_halfs(bench.halfs(16 * 16), 16), bench.zeros(32), bug])


def map_beyond_allocation(bench: Bench, bug: int) -> None:
    rows = 8 if bug else 16
    bench.launch("box", 1, 32, [bench.map_of_halfs(bench.halfs(rows * 16), 16), bench.zeros(32), 0])


def map_never_encoded(bench: Bench, bug: int) -> None:
    tensor_map = TensorMap() if bug else bench.map_of_halfs(bench.halfs(16 * 16), 16)
    bench.launch("box", 1, 32, [tensor_map, bench.zeros(32), 0])


def product(bench: Bench, bug: int) -> None:
    bench.launch("product", 1, 128, [bench.halfs(64 * 64), bench.halfs(8 * 64), bench.zeros(64 * 8), bug])


BUGS = (
    bug("read_beyond", "memory", "out-of-bounds read .* 0 bytes behind an allocation of 128", simple(1, 32, 32, 32, 32)),
    bug("write_beyond", "memory", "out-of-bounds write of 4 bytes", simple(1, 64, 0, 32, 32)),
    bug("static_shared_beyond", "memory", r"out-of-bounds write .*shared variable .*tile", simple(1, 32, 0, 32)),
    bug("dynamic_shared_beyond", "memory", "out-of-bounds write .*128 bytes of dynamic shared", simple(1, 32, 0, 32, shared=128)),
    Bug("shared_of_an_earlier_launch", "memory", "out-of-bounds write", shared_of_an_earlier_launch),
    bug("misaligned_vector", "memory", "misaligned read of 16 bytes", simple(1, 1, 32, 32)),
    Bug("freed_memory", "memory", "out-of-bounds read .*freed memory", freed_memory),
    Bug("uninitialised_global", "memory", "read of uninitialised global memory", uninitialised_global),
    bug("uninitialised_shared", "memory", "read of uninitialised shared memory", simple(1, 32, 0, 32)),
    bug("wrong_space", "memory", "a global-memory instruction, the address is shared memory's", simple(1, 32, 32, 32)),
    bug("write_constant_address", "memory", "invalid write .*not device memory", simple(1, 1, 0, 32)),
    bug("missing_barrier", "races", "data race on shared memory|uninitialised shared", simple(1, 64, 64, 64)),
    bug("missing_barrier_of_halves", "races", "data race on shared memory|uninitialised shared", simple(1, 32, 32, 32)),
    bug("missing_second_barrier", "races", "data race on shared memory", simple(1, 64, 256, 64, 4)),
    bug("missing_syncwarp", "races", "data race on shared memory|uninitialised shared", simple(1, 32, 32, 32)),
    bug("blocks_share_a_word", "races", "data race between blocks on global memory", simple(4, 32, 0, 32)),
    bug("missing_atomic", "races", "data race.* on global memory", simple(4, 32, 0, 1)),
    Bug("last_block_sums", "races", "data race between blocks on global memory", last_block),
    bug("first_reader_not_waited_for", "races", "data race on shared memory .*: read by thread 0", simple(1, 96, 1, 2)),
    bug("arrive_too_early", "races", "data race on shared memory", simple(1, 64, 32, 32)),
    bug("copy_without_wait", "races", "cp.async of thread", simple(1, 32, 32, 32)),
    bug("copy_into_a_tile_in_use", "races", "cp.async of thread|data race on shared memory", simple(1, 64, 512, 64, 8)),
    bug("divergent_barrier", "barriers", "divergent barrier", simple(1, 64, 0, 64)),
    bug("barrier_after_return", "barriers", "divergent barrier: .*return", simple(1, 64, 0, 64, 40)),
    bug("wrong_thread_count", "barriers", "deadlock.*barrier 1", simple(1, 96, 0, 96)),
    bug("shuffle_in_divergent_code", "barriers", "deadlock.*shfl.sync", simple(1, 32, 0, 32)),
    bug("mask_without_the_caller", "barriers", "mask 0000ffff lacks the calling lane", simple(1, 32, 0, 32)),
    bug("mbarrier_never_initialised", "barriers", "mbarrier.*initialised", simple(1, 32, 0, 32)),
    bug("mbarrier_with_too_many_arrivals", "barriers", "mbarrier.*arrival", simple(1, 32, 0, 32)),
    bug(
        "mbarrier_with_too_few_arrivals",
        "barriers",
        r"at ptx\.cuh:\d+ < \w+\.cu:\d+ for mbarrier.*1 arrival",
        simple(1, 32, 0, 32),
    ),
    bug("mbarrier_overwritten", "barriers", "mbarrier", simple(1, 32, 0, 32)),
    bug("neighbour_not_waited_for", "clusters", "data race on shared memory|uninitialised shared", simple(2, 32, 0, 64)),
    bug("neighbour_has_exited", "clusters", "block rank 0, which has exited", simple(2, 32, 0, 64)),
    bug("block_that_is_not_there", "clusters", "rank 2", simple(2, 32, 0, 64)),
    bug("arrive_twice", "clusters", "barrier.cluster.arrive a second time", simple(2, 32, 0, 64)),
    Bug("dependent_launch", "clusters", "before griddepcontrol.wait", dependent_launch),
    bug("bulk_in", "tensor", "deadlock.*mbarrier.*128 bytes", simple(1, 32, 32, 32)),
    bug("bulk_in", "tensor", "data race on shared memory|uninitialised shared", simple(1, 32, 32, 32), 2),
    bug("bulk_out", "tensor", "fence.proxy.async is missing", simple(1, 32, 32, 32)),
    bug("bulk_out", "tensor", "data race on shared memory", simple(1, 32, 32, 32), 2),
    bug("bulk_out", "tensor", "cp.async.bulk.wait_group is missing", simple(1, 32, 32, 32), 3),
    Bug("ring", "tensor", "data race on shared memory|mbarrier.* 1 more arrival", tensor_ring),
    Bug("box", "tensor", "out-of-bounds|beyond", tensor_box),
    Bug("box", "tensor", "128", tensor_box, 2),
    Bug("map_beyond_allocation", "tensor", "out-of-bounds tensor copy.*allocation of 256 bytes", map_beyond_allocation),
    Bug("map_never_encoded", "tensor", "tensor map", map_never_encoded),
    Bug("product", "tensor", "fence.proxy.async is missing", product),
    Bug("product", "tensor", "data race on shared memory", product, 2),
)  # fmt: skip


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    images = Path(os.environ.get("DNNCORE_CACHE_DIR") or tmp_path_factory.getbasetemp()) / "seeded-bugs"
    found = Bench(request.param, images)
    yield found
    found.close()


def reported(bench: Bench, case: Bug, number: int) -> str:
    """What the emulator says of a run; empty when it finds nothing."""
    last_error = ctypes.CDLL(os.environ["DNN_EMU_LIB"]).emu_last_error
    last_error.restype = ctypes.c_char_p
    try:
        case.run(bench, number)
    except CudaError as error:
        return (last_error() or str(error).encode()).decode()
    return ""


@pytest.mark.parametrize(("bench", "case"), [pytest.param(b.file, b, id=str(b)) for b in BUGS], indirect=["bench"])
def test_the_bug_is_found_and_named(bench: Bench, case: Bug) -> None:
    report = reported(bench, case, case.number)
    assert re.search(case.report, report), report or "nothing was reported"


@pytest.mark.parametrize(
    ("bench", "case"), [pytest.param(b.file, b, id=b.name) for b in BUGS if b.number == 1], indirect=["bench"]
)
def test_without_the_bug_nothing_is_reported(bench: Bench, case: Bug) -> None:
    assert reported(bench, case, 0) == ""
