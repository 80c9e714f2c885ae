"""Barriers of a block and of a warp: PTX ISA 9.7.13.1 to 9.7.13.3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.sources import cuda_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array

THREADS = 128


def simple(
    made: Family,
    library: str,
    name: str,
    covers: str,
    source: Array,
    outputs: int,
    expected: Callable[[], Array] | None,
    block: int = THREADS,
    grid: int = 1,
    kind: str = "u32",
    cluster: int | None = None,
    shared: int = 0,
) -> None:
    """A check of a kernel with the parameters (in, out)."""

    def run(bench: Bench) -> Array:
        out = bench.output(outputs)
        arguments = [bench.upload(source), out]
        bench.launch(cuda_library(library), name, grid, block, arguments, cluster=cluster, shared=shared)
        return bench.read(out)

    cuda_library(library)  # a missing file shows at once
    made.add(name, covers, run, kind, expected)


def _reduced(source: Array) -> Array:
    large = source > 99
    halves = np.repeat((~large).reshape(2, 64).sum(1), 64)
    found: Array = (int(large.sum()) | int(large.all()) << 8 | int(large.any()) << 9 | halves << 16).astype(np.uint32)
    return found


def family() -> Family:
    """The checks."""
    made = Family("barriers")
    source = values.bits("barriers", "u32", 4 * 64)
    t = np.arange(THREADS)
    rotated = source[(t + 37) % THREADS] * np.uint32(3)
    covers = "bar.sync barrier.sync barrier.cta.sync.aligned"
    simple(made, "barriers", "neighbours", covers, source[:THREADS], THREADS, lambda: rotated[::-1].copy())
    mirrored = source.reshape(4, 64)[:, ::-1].copy()
    simple(made, "barriers", "producers", "bar.sync bar.arrive barrier.cta.arrive", source, 256, lambda: mirrored)
    small = values.integers("reductions", 0, 200, THREADS).astype(np.uint32)
    covers = "bar.red.popc.u32 bar.red.and.pred barrier.cta.red.or.pred"
    simple(made, "barriers", "reductions", covers, small, THREADS, lambda: _reduced(small))
    first = source[:THREADS][t ^ 31] + (t % 32).astype(np.uint32)
    simple(made, "barriers", "warps", "bar.warp.sync", source[:THREADS], THREADS, lambda: first[t ^ 15])
    odd = int((small & 1).sum()) | int(small.all()) << 8
    counted = np.full(THREADS, odd, np.uint32)
    covers = "barrier.cta.red.popc.aligned.u32 barrier.red.popc.aligned.u32"
    simple(made, "barriers", "counting", covers, small, THREADS, lambda: counted)
    return made
