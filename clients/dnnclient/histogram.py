"""Durations counted in buckets whose bounds grow by a constant factor: any number in the same memory, and percentiles to 1 %."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dnncore.errors import BadParamError

__all__ = ["DurationSummary", "Histogram"]

_LOWEST_S = 1e-6
_GROWTH = 1.01
_LOG_GROWTH = math.log(_GROWTH)
_BUCKETS = math.ceil(math.log(1e10) / _LOG_GROWTH) + 1  # up to 10,000 s: 2316, 18 kB
_BAR = 40  # columns


class Histogram:
    """Counts of durations, in seconds. Owned by one thread; not checked: whoever adds to it.

    A bucket's upper bound is 1.01 times its lower one; the first holds all up to 1 us, the last all from 10,000 s on. Mean, least
    and largest are exact.
    """

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self._sum_s = 0.0
        self._min_s = math.inf
        self._max_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration; one below zero, as clocks of two processes may give, as zero."""
        seconds = max(0.0, seconds)
        bucket = 0 if seconds <= _LOWEST_S else math.ceil(math.log(seconds / _LOWEST_S) / _LOG_GROWTH)
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self.count += 1
        self._sum_s += seconds
        self._min_s = min(self._min_s, seconds)
        self._max_s = max(self._max_s, seconds)

    def percentile(self, percent: float) -> float:
        """Return the nearest-rank percentile: what at least percent % of all durations do not exceed, and 1 % more at most.

        Args:
            percent: In (0, 100].

        Raises:
            BadParamError: nothing was counted, or percent is out of range.
        """
        if not self.count or not 0 < percent <= 100:
            raise BadParamError(f"the {percent} % percentile of {self.count} durations is undefined")
        # Without rounding, 99.9 / 100 * 1000 is 999.0000000000001 and would name the 1000th duration instead of the 999th.
        rank = math.ceil(round(percent / 100 * self.count, 6))
        for upper_s, _, up_to in self._filled():
            if up_to >= rank:
                return max(self._min_s, min(upper_s, self._max_s))
        raise AssertionError("counts add up to less than their number")

    def summary(self) -> DurationSummary | None:
        """Mean and percentiles; None when nothing was counted."""
        if not self.count:
            return None
        at = {name: self.percentile(percent) for name, percent in _PERCENTS.items()}
        return DurationSummary(mean=self._sum_s / self.count, **at)

    def buckets(self) -> tuple[tuple[float, int], ...]:
        """(upper bound, durations) of each bucket that holds any, in ascending order."""
        return tuple((upper_s, count) for upper_s, count, _ in self._filled())

    def _filled(self) -> Iterator[tuple[float, int, int]]:
        """(upper bound, durations, durations up to it) of each bucket that holds any."""
        up_to = 0
        for bucket, count in enumerate(self._counts):
            if count:
                up_to += count
                upper_s = self._max_s if bucket == _BUCKETS - 1 else _LOWEST_S * _GROWTH**bucket
                yield upper_s, count, up_to

    def __str__(self) -> str:
        """A line for each step of 1, 2, 5, 10, ... from the least to the largest, with a bar for its share."""
        rows: dict[float, int] = {}
        for upper_s, count in self.buckets():
            bound = _rounded_up(min(upper_s, self._max_s))
            rows[bound] = rows.get(bound, 0) + count
        if not rows:
            return ""
        bounds = [min(rows)]
        while bounds[-1] < max(rows):
            bounds.append(_rounded_up(bounds[-1] * 1.5))
        most = max(rows.values())
        return "\n".join(
            f"  to {_text(bound):>7}  {rows.get(bound, 0):>9}  {rows.get(bound, 0) / self.count:>6.1%}  "
            + "#" * math.ceil(_BAR * rows.get(bound, 0) / most)
            for bound in bounds
        )


@dataclass(frozen=True, slots=True)
class DurationSummary:
    """How durations are distributed, in seconds. Immutable."""

    mean: float
    p50: float
    p90: float
    p99: float
    p99_9: float
    max: float

    def __str__(self) -> str:
        named = {name.replace("_", "."): value for name, value in asdict(self).items() if name != "mean"}
        return "  ".join(f"{name} {value * 1e3:.3g} ms" for name, value in named.items())


_PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9, "max": 100.0}


def _rounded_up(seconds: float) -> float:
    """The least of 1, 2, 5, 10, 20, ... us that is no smaller."""
    exponent = math.floor(math.log10(max(seconds, _LOWEST_S)))
    candidates = (float(f"{digit}e{exponent + decade}") for decade in (0, 1) for digit in (1, 2, 5))
    return next(bound for bound in candidates if bound >= seconds * (1 - 1e-9))


def _text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e6:g} us"
