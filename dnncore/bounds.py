"""What an algorithm can say of its offer for less work than to make it, so that a choice need not ask for what cannot win."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from typing import Any, TypeVar

from dnncore.backend import Offer
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind

__all__ = ["Bounded", "BoundedTwice", "Searched", "Selective", "exhausted"]

_Found = TypeVar("_Found")


class Selective:
    """What an algorithm is besides that computes some kinds of convolutions and no others, whatever their extents. Immutable."""

    __slots__ = ()

    @abstractmethod
    def suits(self, kind: ConvolutionKind) -> bool:
        """Whether it may have an offer for a convolution of a kind. What it does not suit it refuses."""


class Bounded:
    """What an algorithm is besides whose offers are much work, and often so slow that they need not be made. Immutable.

    No ABC: every plan asks every algorithm whether it is one of these, and of an ABC that takes several times as long.
    """

    __slots__ = ()

    @abstractmethod
    def least_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """Seconds that an offer cannot be below, for a fraction of its work; anything where it is known that there is none."""


class BoundedTwice(Bounded):
    """What an algorithm is besides that has a second, closer bound: of those that it is composed of, for example. Immutable."""

    __slots__ = ()

    @abstractmethod
    def closer_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """As `least_seconds`, not below it, for more work: asked where that one leaves it open."""


class Searched(Bounded):
    """What an algorithm is besides that is composed of the fastest of others: its offer is made step by step. Immutable.

    Whoever chooses goes on with the steps as long as what they have come to may be the fastest, and not any further.
    """

    __slots__ = ()

    @abstractmethod
    def search(self, problem: Any, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """Before each step seconds that the offer cannot be below; at last what `offer` returns, or why another one is as good."""

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """All steps; see `Algorithm`."""
        return exhausted(self.search(problem, figures))


def exhausted(search: Generator[float, None, _Found]) -> _Found:
    """What a search comes to, whatever its bounds."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: _Found = end.value
            return found
