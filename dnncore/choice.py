"""The fastest of several algorithms: by what was measured, else by estimate, without the offers of those that cannot be it.

A plan waits for this. To see every offer, as a list of algorithms shows them, is `plan.rank`; its first is what is found here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeVar

from dnncore.backend import Algorithm, Bounded, BoundedTwice, Offer
from dnncore.figures import DeviceFigures
from dnncore.measured import MeasuredChoice, names_digest
from dnncore.problems import Problem

__all__ = ["closest_seconds", "fastest", "fastest_measured", "is_current", "least_seconds", "with_measured"]

AnyAlgorithm = TypeVar("AnyAlgorithm", bound=Algorithm)


def fastest(
    algorithms: Sequence[AnyAlgorithm],
    problem: Problem,
    figures: DeviceFigures,
    allows: Callable[[Offer], bool] = lambda _: True,
) -> tuple[AnyAlgorithm, Offer] | None:
    """The algorithm whose offer takes least time, the first of equal ones, and that offer; None where there is none.

    They are asked in the order of their bounds, until what is left has bounds above an offer that was made; those that have a
    closer bound, for that first.

    Args:
        algorithms: Those to choose from.
        problem: What to solve.
        figures: Of the device.
        allows: Whether an offer may be taken.
    """
    waiting = [
        (
            algorithm.least_seconds(problem, figures) if isinstance(algorithm, Bounded) else 0.0,
            place,
            isinstance(algorithm, BoundedTwice),
        )
        for place, algorithm in enumerate(algorithms)
    ]
    heapify(waiting)
    least, found = (math.inf, len(algorithms)), None
    while waiting and waiting[0][:2] <= least:
        _, place, can_be_closer = heappop(waiting)
        algorithm = algorithms[place]
        if can_be_closer and isinstance(algorithm, BoundedTwice):
            heappush(waiting, (algorithm.closer_seconds(problem, figures), place, False))
            continue
        offer = algorithm.offer(problem, figures)
        if isinstance(offer, Offer) and (offer.seconds, place) < least and allows(offer):
            least, found = (offer.seconds, place), (algorithm, offer)
    return found


def fastest_measured(
    algorithms: Sequence[AnyAlgorithm],
    problem: Problem,
    figures: DeviceFigures,
    allows: Callable[[Offer], bool],
    measured: MeasuredChoice,
    *,
    current: bool,
) -> tuple[AnyAlgorithm, Offer] | None:
    """As `fastest`, by what was measured of the problem: the first of these that still offers and may be taken.

    Those that were not measured were estimated to be slower, and are asked where none of the others can be taken; or where there
    are other algorithms now than there were, since one of them may be faster than any that was measured.

    Args:
        algorithms: Those to choose from; of those that were measured, some may be gone.
        problem: What to solve.
        figures: Of the device.
        allows: Whether an offer may be taken.
        measured: What is known of the problem.
        current: Whether there are the algorithms that there were (`is_current`).
    """
    found = None
    by_name = {algorithm.name: algorithm for algorithm in algorithms}
    for name, _ in measured.seconds:
        algorithm = by_name.pop(name, None)
        if algorithm is None or found is not None:
            continue
        offer = algorithm.offer(problem, figures)
        if isinstance(offer, Offer) and allows(offer):
            found = algorithm, with_measured(offer, name, measured)
    if found is not None and current:
        return found
    other = fastest(tuple(by_name.values()), problem, figures, allows)
    if found is None or other is None:
        return found or other
    return other if other[1].seconds < found[1].seconds else found


def is_current(measured: MeasuredChoice, algorithms: Sequence[Algorithm]) -> bool:
    """Whether the algorithms for a problem are those that there were when it was measured."""
    return measured.algorithms == names_digest([algorithm.name for algorithm in algorithms])


def with_measured(offer: Offer, name: str, measured: MeasuredChoice | None) -> Offer:
    """An offer with the seconds that were measured in place of those that were estimated, where they were."""
    seconds = None if measured is None else measured.seconds_of(name)
    return offer if seconds is None else replace(offer, seconds=seconds, is_measured=True)


def least_seconds(algorithms: Sequence[Algorithm], problem: Problem, figures: DeviceFigures) -> float:
    """Seconds that none of their offers is below: a bound for what is composed of the fastest of them; infinite where none offers.

    Those without a bound are asked for their offers, which are little work.
    """
    return min((_own_least_seconds(algorithm, problem, figures) for algorithm in algorithms), default=math.inf)


def closest_seconds(algorithms: Sequence[Algorithm], problem: Problem, figures: DeviceFigures) -> float:
    """As `least_seconds`, not below it: closer bounds are asked for as long as the least of all is not one of these."""
    waiting = [
        (_own_least_seconds(algorithm, problem, figures), place, isinstance(algorithm, BoundedTwice))
        for place, algorithm in enumerate(algorithms)
    ]
    heapify(waiting)
    while waiting:
        least, place, can_be_closer = heappop(waiting)
        algorithm = algorithms[place]
        if not can_be_closer or not isinstance(algorithm, BoundedTwice):
            return least
        heappush(waiting, (algorithm.closer_seconds(problem, figures), place, False))
    return math.inf


def _own_least_seconds(algorithm: Algorithm, problem: Problem, figures: DeviceFigures) -> float:
    if isinstance(algorithm, Bounded):
        return algorithm.least_seconds(problem, figures)
    offer = algorithm.offer(problem, figures)
    return offer.seconds if isinstance(offer, Offer) else math.inf
