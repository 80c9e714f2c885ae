"""When a load generator's requests arrive: the two kinds of load, as values and arithmetic; nothing here sends or waits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dnncore.errors import BadParamError

__all__ = ["Arrivals", "ClosedLoop", "OpenLoop"]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """As many senders as concurrency says, each sending its next request when the last is answered. Immutable.

    It finds a server's throughput. It says little of latency under a given load: when the server slows down, so do its senders.
    """

    concurrency: int = 8

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise BadParamError(f"concurrency is {self.concurrency}; use 1 or more")

    def __str__(self) -> str:
        return f"closed loop, {self.concurrency} at a time"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive at a rate, whatever becomes of those before them: what users do. Immutable.

    Args:
        rate: Requests a second.
        poisson: Whether the gaps are exponentially distributed, as of many independent users, or all equal.
        seed: Of the gaps.
    """

    rate: float
    poisson: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise BadParamError(f"rate is {self.rate}; use a number of requests a second above 0")

    def __str__(self) -> str:
        return f"open loop, {self.rate:g} requests/s, {'Poisson' if self.poisson else 'evenly spaced'}"

    def offsets(self) -> Iterator[float]:
        """Yield the arrivals without end, in seconds from the start, in order."""
        if not self.poisson:
            # Multiplied rather than added up, or the rounding of each gap would shift the rate.
            return (index / self.rate for index in itertools.count())
        gaps = random.Random(self.seed)
        return itertools.accumulate(gaps.expovariate(self.rate) for _ in itertools.count())


Arrivals: TypeAlias = ClosedLoop | OpenLoop
