"""How threads share out parts of sums that a second kernel adds up: `convolution/sum_of_parts.cuh`. Pure."""

from __future__ import annotations

__all__ = ["SUM_THREADS", "log2_ways"]

SUM_THREADS = 128
_MOST_LOG2_WAYS, _PARTS_OF_A_WAY = 5, 8


def log2_ways(parts: int) -> int:
    """Of how many threads share the parts of four sums, so that few of them have more than eight."""
    return next(n for n in range(_MOST_LOG2_WAYS + 1) if parts <= _PARTS_OF_A_WAY << n or n == _MOST_LOG2_WAYS)
