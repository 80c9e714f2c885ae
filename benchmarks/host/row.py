"""A figure of the host's: ours, PyTorch's where it has one, and what we want it to be at most."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Row", "host_us", "host_us_beside", "interpreter_us", "processor_us"]


@dataclass(frozen=True)
class Row:
    """One figure. Immutable.

    Args:
        name: Unique among all.
        ours: What ours takes.
        unit: "us", "ms" or "s".
        torch: What PyTorch's takes; None where there is nothing to compare.
        most: The goal; None where there is none, or where PyTorch's figure alone is it.
        below_torch: Whether it is a goal to take less than PyTorch's.
    """

    name: str
    ours: float
    unit: str
    torch: float | None = None
    most: float | None = None
    below_torch: bool = False

    def __post_init__(self) -> None:
        assert self.torch is not None or not self.below_torch, "there is a figure of PyTorch's to be below"

    @property
    def is_met(self) -> bool | None:
        """Whether all goals are; None where there are none."""
        goals = [] if self.most is None else [self.ours <= self.most]
        if self.torch is not None and self.below_torch:
            goals.append(self.ours < self.torch)
        return all(goals) if goals else None

    @property
    def values(self) -> dict[str, Any]:
        """For JSON."""
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}

    def __str__(self) -> str:
        theirs = "" if self.torch is None else f"  PyTorch {self.torch:9.3f}"
        goals = ([] if self.most is None else [f"at most {self.most:g}"]) + ["below PyTorch's"] * self.below_torch
        goal = f"  {' and '.join(goals)}{'' if self.is_met else ': MISSED'}" if goals else ""
        return f"{self.name:64s} {self.ours:9.3f} {self.unit}{theirs}{goal}"


def host_us(call: Callable[[], Any], synchronize: Callable[[], Any], calls: int = 200, samples: int = 15) -> float:
    """Median over samples of the host's microseconds for one of so many calls, which the device is given time to finish."""
    return host_us_beside([call], synchronize, calls, samples)[0]


def host_us_beside(
    contestants: Sequence[Callable[[], Any]], synchronize: Callable[[], Any], calls: int = 200, samples: int = 15
) -> list[float]:
    """As `host_us`, of several in turn, so that a machine that slows down does so for all of them."""
    found: list[list[float]] = [[] for _ in contestants]
    for _ in range(samples):
        for call, times in zip(contestants, found, strict=True):
            started = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - started) / calls * 1e6)
            synchronize()
    return [statistics.median(times[1:]) for times in found]


def processor_us(call: Callable[[], Any], calls: int = 300, samples: int = 15) -> float:
    """Median over samples of a call's microseconds of processor time, for what waits for no device."""
    times = []
    for _ in range(samples):
        started = time.process_time()
        for _ in range(calls):
            call()
        times.append((time.process_time() - started) / calls * 1e6)
    return statistics.median(times[1:])


class _Sum:
    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b

    def value(self) -> int:
        return self.a + self.b


def interpreter_us() -> float:
    """What Python itself takes, now and on this machine, for an object and a call of its method: a measure for other figures.

    By a Python 3.11 without profile-guided optimisation, on two virtual cores of an EPYC: 0.4 to 0.6, as others are busy there.
    """
    return processor_us(lambda: _Sum(1, 2).value(), calls=10_000)
