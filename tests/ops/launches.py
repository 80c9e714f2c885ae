"""What the cases would launch on an H200, known without one: how many threads, and which kernels.

A thread of the emulator takes tens of microseconds, and the threads of a few launches would take most of the suite's time: of large
problems by algorithms that give every output a block, and of small ones by `fft_tiling`, whose products have a block for each
frequency. So the emulator runs all but those (`emulated`), and in another order of threads no more than launches every kernel once
(`cover`). A GPU and the reference run all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush

from dnncore.backend import Offer
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.calls import Calls, KernelCall, WhereAligned
from dnncore.figures import H200
from tests.cases import CASES, Case

__all__ = ["MOST_THREADS", "SLOW", "Launches", "cover", "emulated", "kernels_of", "launches", "launches_of"]

MOST_THREADS = 8_000
"""Of the launches of a problem."""

SLOW = {"fft_tiling", "fft_tiling_3xtf32"}
"""Algorithms that never have few threads, and have a hundred cases of their own."""

Run = tuple[str, str]
"""A case's and an algorithm's name."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Those of one case by one algorithm. Immutable.

    Args:
        kernels: Their names, and whether a grid has several blocks, which is what blocks in another order are about.
    """

    threads: int
    kernels: frozenset[tuple[str, bool]]


@cache
def launches() -> Mapping[Run, Launches]:
    """Of every case by every algorithm, or by those alone that it was written for."""
    found = {}
    for case in CASES:
        for algorithm in algorithms_for(case.problem):
            offer = algorithm.offer(case.problem, H200)
            if not isinstance(offer, str) and (not case.written_for or algorithm.name in case.written_for):
                found[case.name, algorithm.name] = launches_of(offer)
    return found


@cache
def emulated() -> frozenset[Run]:
    """What the emulator runs: what is small; by `fft_tiling` what was written for it; what is left of a case if nothing is small.

    What was written for an algorithm and is large is run in one direction of the three, in turn. What launches a kernel that none
    of these does is run too.
    """
    chosen: set[Run] = set()
    large: dict[tuple[str, ...], list[Run]] = {}
    of_case: dict[str, dict[Run, int]] = {case.name: {} for case in CASES}
    for run, launched in launches().items():
        of_case[run[0]][run] = launched.threads
    for case in CASES:
        runs = of_case[case.name]
        small = {
            run for run, threads in runs.items() if threads <= MOST_THREADS and (case.written_for or run[1] not in SLOW)
        }
        chosen |= small
        if case.written_for:
            for run in runs:  # in this order: another would be another choice in each process
                if run not in small:
                    large.setdefault((run[1], *_without_direction(case)), []).append(run)
        elif not small:
            chosen.add(min(runs, key=runs.__getitem__))
    chosen |= {runs[i % len(runs)] for i, runs in enumerate(large.values())}
    for kernel in sorted(kernels_of(launches()) - kernels_of(chosen)):
        chosen.add(
            min(
                (run for run, it in launches().items() if kernel in it.kernels), key=lambda run: launches()[run].threads
            )
        )
    return frozenset(chosen)


def _without_direction(case: Case) -> list[str]:
    direction = getattr(case.problem, "direction", None)
    return [part for part in case.name.split("-") if direction is None or part != direction.value]


@cache
def cover() -> frozenset[Run]:
    """A few of them that launch every kernel, with several blocks where any does: greedily, by threads for each one that is new."""
    runs = [run for run in launches() if run in emulated()]
    chosen, left = set(), kernels_of(runs)
    # What a run costs for each new kernel only grows: the first whose cost is still what it was when it was put there is the least.
    waiting = [(0.0, index) for index in range(len(runs))]
    while left:
        cost, index = heappop(waiting)
        launched = launches()[runs[index]]
        new = len(launched.kernels & left)
        if not new:
            continue
        now = (_PER_RUN + launched.threads) / new
        if now != cost:
            heappush(waiting, (now, index))
            continue
        left -= launched.kernels
        chosen.add(runs[index])
    return frozenset(chosen)


_PER_RUN = 500
"""Threads of the emulator that take as long as a test without its launches."""


def kernels_of(runs: Iterable[Run]) -> set[tuple[str, bool]]:
    """All that they launch."""
    return set().union(*(launches()[run].kernels for run in runs))


def launches_of(offer: Offer) -> Launches:
    """Those that it would prepare."""
    kernels = tuple(_kernel_calls(offer.prepare()))
    threads = sum(math.prod(call.grid) * math.prod(call.block) for call in kernels)
    several = {(call.unit.entry, True) for call in kernels if math.prod(call.grid) > 1}
    return Launches(threads, frozenset(several | {(call.unit.entry, False) for call in kernels}))


def _kernel_calls(calls: Calls) -> Iterator[KernelCall]:
    """Of tensors that are aligned."""
    for call in calls:
        if isinstance(call, WhereAligned):
            yield from _kernel_calls(call.aligned)
        elif isinstance(call, KernelCall):
            yield call
