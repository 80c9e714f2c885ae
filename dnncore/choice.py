"""The fastest of several algorithms by estimate, found without the offers of those that cannot be it.

A plan waits for this. To see every offer, as a list of algorithms shows them, is `plan.rank`; its first is what is found here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from dnncore.backend import Algorithm, Bounded, Offer
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

    They are asked in the order of their bounds, until what is left has bounds above an offer that was made.

    Args:
        algorithms: Those to choose from.
        problem: What to solve.
        figures: Of the device.
        allows: Whether an offer may be taken.
    """
    bounds = sorted((_least_seconds(algorithm, problem, figures), place) for place, algorithm in enumerate(algorithms))
    least, found = (math.inf, len(algorithms)), None
    for bound in bounds:
        if bound > least:
            break
        place = bound[1]
        offer = algorithms[place].offer(problem, figures)
        if isinstance(offer, Offer) and (offer.seconds, place) < least and allows(offer):
            least, found = (offer.seconds, place), (algorithms[place], offer)
    return found


def _least_seconds(algorithm: Algorithm, problem: Problem, figures: DeviceFigures) -> float:
    return algorithm.least_seconds(problem, figures) if isinstance(algorithm, Bounded) else 0.0
