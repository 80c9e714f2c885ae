"""The benchmark of a start counts every part once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.start import PARTS, Stopwatch, measure
from dnncore.nn import Executor
from tests.server.packages import make_package


class Clock:
    """Seconds that pass when they are told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float, then: Callable[[], object] = lambda: None) -> None:
        self.now += seconds
        then()


def test_what_a_part_spends_in_another_counts_there() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    inner = watch.timed("inner", clock.spend)
    outer = watch.timed("outer", clock.spend)
    outer(2, lambda: inner(3))
    clock.spend(50)
    inner(1)

    def fail() -> None:
        clock.spend(4)
        raise ValueError

    with pytest.raises(ValueError):
        outer(1, watch.timed("inner", fail))
    assert watch.seconds == {"outer": 3, "inner": 8}


def test_a_start_is_measured_by_part_and_nothing_stays_wrapped(tmp_path: Path) -> None:
    make_package().save(tmp_path / "digits")
    run = Executor.run
    seconds = measure(tmp_path / "digits", "cpu", "fp32", 4, time.time())
    assert list(seconds) == list(PARTS)
    assert all(seconds[part] > 0 for part in ("package", "weights", "plans", "recording", "runs"))
    assert Executor.run is run
