"""Algorithms to choose from, without those that a kind of convolution rules out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from dnncore.backend import Algorithm
from dnncore.bounds import Selective
from dnncore.problems import ConvolutionKind

__all__ = ["Family"]

AnyAlgorithm = TypeVar("AnyAlgorithm", bound=Algorithm)

_MOST_KINDS = 256


class Family(tuple[AnyAlgorithm, ...]):
    """Algorithms for convolutions: of equal estimates the first is taken. Immutable.

    Most of them are for a few kinds. Which are left for a kind is worked out when the first convolution of it comes, so that no
    other one asks those that would refuse: of 22 algorithms for float16 in NCHW with one tap, 6 are left.
    """

    def __init__(self, _algorithms: Sequence[AnyAlgorithm] = ()) -> None:
        self.suiting = lru_cache(maxsize=_MOST_KINDS)(self._suiting)

    def _suiting(self, kind: ConvolutionKind) -> tuple[AnyAlgorithm, ...]:
        """Those that may have an offer for a convolution of a kind, in the same order."""
        return tuple(each for each in self if not isinstance(each, Selective) or each.suits(kind))
