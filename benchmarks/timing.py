"""How long a launch takes on a device whose work is asynchronous."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

__all__ = ["milliseconds"]

_REPETITIONS = 5
_BATCH_SECONDS = 0.02
_TOO_SLOW_MS = 200.0
"""A plain kernel is there to be right; where it is slower than this it is timed once."""


def milliseconds(launch: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """Median over repetitions of a batch of launches between two synchronisations, of the time of one launch."""

    def batch(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            launch()
        synchronize()
        return (time.perf_counter() - started) / count

    for _ in range(2):  # the first launch may load code
        once = batch(1)
        if once * 1e3 > _TOO_SLOW_MS:
            return once * 1e3
    count = max(3, min(500, int(_BATCH_SECONDS / once)))
    return statistics.median(batch(count) for _ in range(_REPETITIONS)) * 1e3
