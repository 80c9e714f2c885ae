"""The fastest of several algorithms: by what was measured, else by estimate, without the offers of those that cannot be it.

A plan waits for this. To see every offer, as a list of algorithms shows them, is `plan.rank`; its first is what is found here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeVar

from dnncore.backend import Algorithm, Offer
from dnncore.bounds import Bounded, BoundedTwice, Searched, exhausted
from dnncore.family import Family
from dnncore.figures import DeviceFigures
from dnncore.measured import MeasuredChoice, names_digest
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem, Problem

__all__ = ["composed", "fastest", "fastest_measured", "is_current", "least_seconds", "searching", "with_measured"]

AnyAlgorithm = TypeVar("AnyAlgorithm", bound=Algorithm)
_Found = TypeVar("_Found")


def fastest(
    algorithms: Sequence[AnyAlgorithm],
    problem: Problem,
    figures: DeviceFigures,
    allows: Callable[[Offer], bool] = lambda _: True,
) -> tuple[AnyAlgorithm, Offer] | None:
    """The algorithm whose offer takes least time, the first of equal ones, and that offer; None where there is none.

    Those of a family that do not suit the kind of convolution are left out. The others are asked in the order of their bounds,
    until what is left has bounds above an offer that was made; those that have a closer bound, for that first, and those that are
    composed of others step by step.

    Args:
        algorithms: Those to choose from.
        problem: What to solve.
        figures: Of the device.
        allows: Whether an offer may be taken.
    """
    if len(algorithms) == 1:  # asked for by name, whether or not it is worth anything beside others
        offer = algorithms[0].offer(problem, figures)
        return (algorithms[0], offer) if isinstance(offer, Offer) and allows(offer) else None
    return exhausted(searching(algorithms, problem, figures, allows))


def searching(
    algorithms: Sequence[AnyAlgorithm],
    problem: Problem,
    figures: DeviceFigures,
    allows: Callable[[Offer], bool] = lambda _: True,
) -> Generator[float, None, tuple[AnyAlgorithm, Offer] | None]:
    """The steps to what `fastest` finds, for what is composed of it: before each of them, seconds that no offer is below."""
    if isinstance(algorithms, Family) and isinstance(problem, (ConvolutionProblem, FusedConvolutionProblem)):
        algorithms = algorithms.suiting(problem.kind)
    waiting: list[tuple[float, int, Generator[float, None, Offer | str] | None]] = [
        (algorithm.least_seconds(problem, figures) if isinstance(algorithm, Bounded) else 0.0, place, None)
        for place, algorithm in enumerate(algorithms)
    ]
    heapify(waiting)
    least, found, told = (math.inf, -1), None, -math.inf  # of an infinite bound there is no offer
    while waiting and waiting[0][:2] <= least:
        if waiting[0][0] > told:
            told = waiting[0][0]
            yield told
        _, place, search = heappop(waiting)
        algorithm = algorithms[place]
        if search is None:
            search = _steps(algorithm, problem, figures)
        offer: Offer | str
        if search is None:
            offer = algorithm.offer(problem, figures)
        else:
            try:
                heappush(waiting, (next(search), place, search))
                continue
            except StopIteration as end:
                offer = end.value
        if isinstance(offer, Offer) and (offer.seconds, place) < least and allows(offer):
            least, found = (offer.seconds, place), (algorithm, offer)
    return found


def composed(
    seconds: Callable[[float], float], search: Generator[float, None, _Found]
) -> Generator[float, None, _Found]:
    """A search for a part of what is composed: `seconds` is what the whole takes, or takes at least, by what the part does."""
    while True:
        try:
            bound = next(search)
        except StopIteration as end:
            found: _Found = end.value
            return found
        yield seconds(bound)


def _steps(
    algorithm: Algorithm, problem: Problem, figures: DeviceFigures
) -> Generator[float, None, Offer | str] | None:
    """Those of an offer that is made in several; None of one that is not."""
    if isinstance(algorithm, Searched):
        return algorithm.search(problem, figures)
    if isinstance(algorithm, BoundedTwice):
        return _closer_first(algorithm.closer_seconds, algorithm.offer, problem, figures)
    return None


def _closer_first(
    closer_seconds: Callable[[Problem, DeviceFigures], float],
    offer: Callable[[Problem, DeviceFigures], Offer | str],
    problem: Problem,
    figures: DeviceFigures,
) -> Generator[float, None, Offer | str]:
    yield closer_seconds(problem, figures)
    return offer(problem, figures)


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


def _own_least_seconds(algorithm: Algorithm, problem: Problem, figures: DeviceFigures) -> float:
    if isinstance(algorithm, Bounded):
        return algorithm.least_seconds(problem, figures)
    offer = algorithm.offer(problem, figures)
    return offer.seconds if isinstance(offer, Offer) else math.inf
