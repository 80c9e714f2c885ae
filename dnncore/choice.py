"""The fastest of several algorithms by estimate, found without the offers of those that cannot be it.

A plan waits for this. To see every offer, as a list of algorithms shows them, is `plan.rank`; its first is what is found here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from dnncore.backend import Algorithm, Bounded, Offer, Untimed
from dnncore.figures import DeviceFigures
from dnncore.problems import Problem

__all__ = ["fastest"]

AnyAlgorithm = TypeVar("AnyAlgorithm", bound=Algorithm)


def fastest(
    algorithms: Sequence[AnyAlgorithm],
    problem: Problem,
    figures: DeviceFigures,
    allows: Callable[[Offer], bool] = lambda _: True,
) -> tuple[AnyAlgorithm, Offer] | None:
    """The algorithm whose offer takes least time, the first of equal ones, and that offer; None where there is none.

    They are asked in the order of their bounds, until what is left has bounds above an offer that was made; those that nobody has
    timed where the others have nothing.

    Args:
        algorithms: Those to choose from.
        problem: What to solve.
        figures: Of the device.
        allows: Whether an offer may be taken.
    """
    bounds = sorted(
        (isinstance(algorithm, Untimed), _least_seconds(algorithm, problem, figures), place)
        for place, algorithm in enumerate(algorithms)
    )
    least, found = (True, math.inf, len(algorithms)), None
    for bound in bounds:
        if bound > least:
            break
        untimed, _, place = bound
        offer = algorithms[place].offer(problem, figures)
        if isinstance(offer, Offer) and (untimed, offer.seconds, place) < least and allows(offer):
            least, found = (untimed, offer.seconds, place), (algorithms[place], offer)
    return found


def _least_seconds(algorithm: Algorithm, problem: Problem, figures: DeviceFigures) -> float:
    """The bound; none of one that nobody has timed, since that comes last anyway."""
    if isinstance(algorithm, Bounded) and not isinstance(algorithm, Untimed):
        return algorithm.least_seconds(problem, figures)
    return 0.0
