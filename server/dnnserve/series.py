"""Counters and histograms that cost little to count in: prometheus_client reads them when it is asked for its page.

Its own metrics take a lock and several calls for each value, of which an inference call has four; these take one lock for all
values of a batch.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

__all__ = ["Counter", "CounterFamily", "Histogram", "HistogramFamily"]

_Series = TypeVar("_Series")


class Counter:
    """A number that grows. Thread-safe: `_lock` guards `value`."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def count(self, number: int = 1) -> None:
        """Add to it."""
        with self._lock:
            self.value += number


class Histogram:
    """How many values fell where, and their sum. Thread-safe: `_lock` guards `_counts` and `_sum`.

    Args:
        bounds: Ascending; a value counts where it is at most the bound, or behind the last.
    """

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count several."""
        bounds, counts = self._bounds, self._counts
        with self._lock:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            self._sum += sum(values)

    def read(self) -> tuple[Sequence[tuple[str, float]], float]:
        """Values up to each bound, as Prometheus names and counts them, and the sum of all."""
        with self._lock:
            counts, total = tuple(self._counts), self._sum
        names = [*map(repr, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(counts)), strict=True)), total


class _Family(Generic[_Series]):
    """The series of one name by their labels' values. Thread-safe: `_lock` guards `_series`.

    Args:
        name: Without a suffix.
        text: What it says of itself.
        labels: Their names.
        make: Makes a series.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str], make: Callable[[], _Series]) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._make = make
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], _Series] = {}

    def labels(self, *values: str) -> _Series:
        """The series of these values, which exists from then on."""
        with self._lock:
            series = self._series.get(values)
            if series is None:
                series = self._series[values] = self._make()
            return series

    def forget(self, *first: str) -> None:
        """Drop every series whose labels begin with these values."""
        with self._lock:
            self._series = {values: each for values, each in self._series.items() if values[: len(first)] != first}

    def _all(self) -> Sequence[tuple[tuple[str, ...], _Series]]:
        with self._lock:
            return tuple(self._series.items())


class CounterFamily(_Family[Counter]):
    """Counters of one name. Thread-safe."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        super().__init__(name, text, labels, Counter)

    def collect(self) -> Iterable[Metric]:
        """What prometheus_client asks for."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, counter in self._all():
            family.add_metric(values, counter.value)
        yield family


class HistogramFamily(_Family[Histogram]):
    """Histograms of one name and the same bounds. Thread-safe."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels, lambda: Histogram(bounds))
        self._summed = bounds[0] >= 0  # a sum that may fall is no counter: Prometheus wants none

    def collect(self) -> Iterable[Metric]:
        """What prometheus_client asks for."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, histogram in self._all():
            labels = dict(zip(self._labels, values, strict=True))
            buckets, total = histogram.read()
            for bound, count in buckets:
                family.add_sample(f"{self._name}_bucket", {**labels, "le": bound}, count)
            family.add_sample(f"{self._name}_count", labels, buckets[-1][1])
            if self._summed:
                family.add_sample(f"{self._name}_sum", labels, total)
        yield family
