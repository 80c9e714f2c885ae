"""The fastest of several algorithms by estimate, found without the offers of those that cannot be it.

A plan waits for this. To see every offer, as a list of algorithms shows them, is `plan.rank`; its first is what is found here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

from dnncore.backend import Algorithm, Bounded, BoundedTwice, Offer
from dnncore.figures import DeviceFigures
from dnncore.problems import Problem

__all__ = ["closest_seconds", "fastest", "least_seconds"]

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
