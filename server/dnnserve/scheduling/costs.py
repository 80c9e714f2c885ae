"""What a batch takes, by device, model and rows: timed at warm-up, corrected by every batch that runs, and known from earlier
where such batches ran before on such a device.

A device pads a batch to a size that it was prepared for and copies the rows that are there, so a curve has points at powers of two
and halfway between them, and a batch costs what the next larger point says. Each point holds a mean, exponentially weighted, and
the curve how far batches scatter around their means, as TCP does with round-trip times (RFC 6298): a mean and four mean deviations,
at most half of the mean, bound what a batch takes nearly always. The scatter is one for all sizes: what makes batches slow at
times, a busy host mostly, does not ask for their size, and a size that was unlucky when it ran last must not be kept out by that
for long. What decides about deadlines is the bound; what is charged and planned with is the mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from dnnserve.envelope import ModelKey

__all__ = ["Cost", "Costs", "Curve", "Learned", "Recall", "cost_sizes"]

_SETTLED = 8
"""Batches after which one more counts for as much as any later one."""
_MEAN_GAIN = 1 / _SETTLED
_SCATTER_GAIN = 1 / 16
_DEVIATIONS = 4
_LEAST_MARGIN = 0.02
_MOST_MARGIN = 0.5
"""What scatters by more than this part of the mean are hiccups of the host. They come seldom, and no margin covers them; one that
tries keeps out requests that nine batches in ten would answer in time, on a device that has nothing else to do."""
_FIRST_SCATTER = 0.03
_SURPRISE = 2.0
"""A batch that takes longer than this many means counts as one that takes as long: a hiccup must not keep requests out."""

_NO_CHANGE = 0.01
"""A mean that moves by less than this part leaves the curve as it is: drawing it anew would take longer than the rest of a batch's
bookkeeping."""

_CONFIRMED_NS = 1_000_000_000
_FADE = 7 / 8


def cost_sizes(max_batch_rows: int) -> tuple[int, ...]:
    """Sizes that a curve has points at: powers of two, those halfway between, and the maximum itself."""
    powers = [1 << power for power in range(max_batch_rows.bit_length())]
    sizes = {size for power in powers for size in (power, power * 3 // 2) if size < max_batch_rows}
    return (*sorted(sizes), max_batch_rows)


class Cost(NamedTuple):
    """What batches of one size took. Immutable; a tuple, as is a curve, because both are made anew for each batch.

    Args:
        mean_ns: Weighted mean.
        batches: That were measured; 0: it is doubted, and the next one replaces it.
        measured_ns: When the last one ended.
    """

    mean_ns: float
    batches: int
    measured_ns: int

    def error(self, took_ns: int) -> float:
        """How much more than the mean a batch took, as a part of it."""
        error = took_ns / self.mean_ns - 1
        settled = self.batches >= _SETTLED
        return _SURPRISE - 1 if settled and error > _SURPRISE - 1 else error

    def measured(self, took_ns: int, now_ns: int) -> Cost:
        """The cost after one more batch."""
        if self.batches == 0:
            return Cost(took_ns, 1, now_ns)
        weight = 1 / (self.batches + 1)  # the mean of the first few is their plain mean
        gain = weight if weight > _MEAN_GAIN else _MEAN_GAIN
        return Cost(self.mean_ns * (1 + gain * self.error(took_ns)), self.batches + 1, now_ns)


class Learned(NamedTuple):
    """What is worth keeping of a curve: that which batches in service have said. Immutable.

    Args:
        points: (rows, mean in nanoseconds, batches that said so), ascending.
        scatter: As the curve has it.
    """

    points: tuple[tuple[int, float, int], ...]
    scatter: float

    def contradicted(self, timings_ns: Mapping[int, int]) -> bool:
        """Whether a warm-up took twice as long, or more, as batches in service have.

        It is the least of two runs on an idle device, without the delivery of answers, and so it takes less: what says otherwise
        was learned in other circumstances. What is too high is no contradiction; where it keeps requests out it fades.
        """
        return any(timings_ns.get(rows, 0) > _SURPRISE * mean_ns for rows, mean_ns, _ in self.points)


Recall = Callable[[str, ModelKey, int, Mapping[int, int]], Learned | None]
"""Says what was learned earlier of a model's batches on a device, given the most rows that they have and what a warm-up has just
taken; None: nothing, or nothing that still holds."""


class Curve(NamedTuple):
    """Costs of one model on one device, by rows; never less for more rows. Immutable.

    Args:
        sizes: Ascending; the last is the most rows that a batch has.
        costs: One for each size; None: nothing is known of it, and it is guessed from its neighbours.
        scatter: Weighted mean of how far batches were from their means, as a part of them.
        doubted_ns: When refusals were last compared with measurements.
        means_ns: What a batch of each size takes on average.
    """

    sizes: tuple[int, ...]
    costs: tuple[Cost | None, ...]
    scatter: float
    doubted_ns: int
    means_ns: tuple[int, ...]

    @classmethod
    def of(cls, sizes: tuple[int, ...], costs: tuple[Cost | None, ...], scatter: float, doubted_ns: int = 0) -> Curve:
        """A curve through these points."""
        means_ns = _rising(sizes, [None if cost is None else cost.mean_ns for cost in costs])
        return cls(sizes, costs, scatter, doubted_ns, means_ns)

    @classmethod
    def seeded(
        cls, max_batch_rows: int, timings_ns: Mapping[int, int], now_ns: int, learned: Learned | None = None
    ) -> Curve:
        """A curve from what batches of some sizes took, just now and, which counts for more, in earlier service."""
        sizes = cost_sizes(max_batch_rows)
        costs: list[Cost | None] = [None] * len(sizes)
        for rows, took_ns in timings_ns.items():
            if rows <= max_batch_rows:
                costs[bisect_left(sizes, rows)] = Cost(max(1, took_ns), 1, now_ns)
        if learned is None:
            return cls.of(sizes, tuple(costs), _FIRST_SCATTER)
        for rows, mean_ns, batches in learned.points:
            if rows in sizes:
                costs[sizes.index(rows)] = Cost(mean_ns, min(batches, _SETTLED), now_ns)
        return cls.of(sizes, tuple(costs), learned.scatter)

    def learned(self) -> Learned | None:
        """What batches in service have said; None: nothing yet."""
        points = tuple(
            (size, cost.mean_ns, cost.batches)
            for size, cost in zip(self.sizes, self.costs, strict=True)
            if cost is not None and cost.batches > 1  # the first may be the warm-up's
        )
        return Learned(points, self.scatter) if points else None

    def mean_ns(self, rows: int) -> int:
        """What a batch of so many rows takes on average."""
        return self.means_ns[bisect_left(self.sizes, rows)]

    def bound_ns(self, rows: int) -> int:
        """What a batch of so many rows takes at most, nearly always."""
        margin = _DEVIATIONS * self.scatter
        if margin < _LEAST_MARGIN:
            margin = _LEAST_MARGIN
        elif margin > _MOST_MARGIN:
            margin = _MOST_MARGIN
        return int(self.means_ns[bisect_left(self.sizes, rows)] * (1 + margin))

    def measured(self, rows: int, took_ns: int, now_ns: int) -> Curve:
        """The curve after a batch."""
        index, scatter = bisect_left(self.sizes, rows), self.scatter
        known = self.costs[index]
        if known is None:
            cost = Cost(took_ns, 1, now_ns)
        else:
            cost = known.measured(took_ns, now_ns)
            if known.batches:
                scatter += (abs(known.error(took_ns)) - scatter) * _SCATTER_GAIN
        costs = (*self.costs[:index], cost, *self.costs[index + 1 :])
        if known is not None and abs(cost.mean_ns - self.means_ns[index]) < _NO_CHANGE * cost.mean_ns:
            return Curve(self.sizes, costs, scatter, self.doubted_ns, self.means_ns)
        return Curve.of(self.sizes, costs, scatter, self.doubted_ns)

    def doubted(self, rows: int, now_ns: int) -> Curve:
        """The curve after a request was refused because so many rows cost too much.

        A cost that is too high keeps out the very requests that would correct it. So what keeps requests out while no batch of that
        size or a larger one has confirmed it for a second fades, an eighth each second, until one is tried.
        """
        if now_ns - self.doubted_ns < _CONFIRMED_NS:
            return self
        index = bisect_left(self.sizes, rows)
        confirmed_ns = max((cost.measured_ns for cost in self.costs[index:] if cost is not None), default=now_ns)
        if now_ns - confirmed_ns < _CONFIRMED_NS:
            return self._replace(doubted_ns=now_ns)
        faded = tuple(None if cost is None else Cost(cost.mean_ns * _FADE, 0, cost.measured_ns) for cost in self.costs)
        return Curve.of(self.sizes, faded, self.scatter * _FADE, now_ns)


class Costs:
    """Curves of all models on all devices. Owned by one thread; not checked: the scheduler's lock sees to it."""

    def __init__(self) -> None:
        self._curves: dict[ModelKey, dict[str, Curve]] = {}
        self._steps_ns: dict[ModelKey, float] = {}

    def __getitem__(self, model: ModelKey) -> Mapping[str, Curve]:
        """A model's curves by device: those that have it."""
        return self._curves[model]

    def step_ns(self, model: ModelKey) -> float:
        """From the end of one full batch to that of the next, when all devices run nothing else."""
        return self._steps_ns[model]

    def add(self, model: ModelKey) -> None:
        """Begin with a model of which nothing is known on any device."""
        self._curves[model] = {}
        self._steps_ns[model] = 0.0

    def remove(self, model: ModelKey) -> None:
        """A model is gone."""
        del self._curves[model], self._steps_ns[model]

    def seed(
        self,
        device: str,
        model: ModelKey,
        max_batch_rows: int,
        timings_ns: Mapping[int, int],
        now_ns: int,
        learned: Learned | None = None,
    ) -> None:
        """Begin with what warm-up took, by rows, and what was learned earlier; without either, batches cost nothing until one has
        run, and nothing is refused.
        """
        self._set(device, model, Curve.seeded(max_batch_rows, timings_ns, now_ns, learned))

    def measure(self, device: str, model: ModelKey, rows: int, took_ns: int, now_ns: int) -> None:
        """Learn from a batch."""
        self._set(device, model, self._curves[model][device].measured(rows, took_ns, now_ns))

    def keep(self, device: str, model: ModelKey, curve: Curve) -> None:
        """Go on with what is known already."""
        self._set(device, model, curve)

    def doubt(self, device: str, model: ModelKey, rows: int, now_ns: int) -> None:
        """Learn from a refusal."""
        curve = self._curves[model][device]
        doubted = curve.doubted(rows, now_ns)
        if doubted is not curve:
            self._set(device, model, doubted)

    def forget(self, device: str, models: Iterable[ModelKey] | None = None) -> None:
        """These models are gone from a device; None: the device is."""
        for model in self._curves if models is None else models:
            curves = self._curves[model]
            curves.pop(device, None)
            self._steps_ns[model] = _step_ns(curves.values())

    def curves(self) -> Mapping[ModelKey, Mapping[str, Curve]]:
        """A copy, by model and device."""
        return {model: dict(curves) for model, curves in self._curves.items()}

    def _set(self, device: str, model: ModelKey, curve: Curve) -> None:
        curves = self._curves[model]
        before = curves.get(device)
        curves[device] = curve
        if before is None or before.means_ns is not curve.means_ns:
            self._steps_ns[model] = _step_ns(curves.values())


def _step_ns(curves: Iterable[Curve]) -> float:
    rate = sum(1 / max(1, curve.mean_ns(curve.sizes[-1])) for curve in curves)
    return 1 / rate if rate else 0.0


def _rising(sizes: tuple[int, ...], known: Sequence[float | None]) -> tuple[int, ...]:
    """Fill the gaps and let no value be less than the one before.

    Between two that are known lies a line; before the first a batch costs what the first does, behind the last what the line
    through the last two says, or its share of the only one.
    """
    places = [place for place, value in enumerate(known) if value is not None]
    values = [value for value in known if value is not None]
    if not values:
        return (0,) * len(sizes)
    if len(values) < len(sizes):
        filled, low, low_ns = values[:1] * (places[0] + 1), 0, 0.0  # a share is a line through nothing at no cost
        for before, place, value in zip(places, places[1:], values[1:], strict=False):
            low, low_ns = sizes[before], filled[before]
            filled += _line(sizes[before + 1 : place], low, low_ns, sizes[place], value)
            filled.append(value)
        last = places[-1]
        values = filled + _line(sizes[last + 1 :], low, low_ns, sizes[last], values[-1])
    return tuple(accumulate(map(int, values), max))


def _line(sizes: Sequence[int], low: int, low_ns: float, high: int, high_ns: float) -> list[float]:
    """What a line through two points says of some sizes."""
    return [low_ns + (high_ns - low_ns) * (size - low) / (high - low) for size in sizes]
