"""Lifetimes to offsets: where in one block tensors lie that are not all needed at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ALIGNMENT_BYTES", "Lifetime", "assign_offsets"]

ALIGNMENT_BYTES = 256
"""What every offset is a multiple of, as allocations of their own are."""


class Lifetime(NamedTuple):
    """How much memory is needed, and when. Immutable.

    Args:
        nbytes: How much.
        first: The step that writes it.
        last: The last step that reads it.
    """

    nbytes: int
    first: int
    last: int


def assign_offsets(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Give each its place, the largest first, each as low as those that live at the same time allow.

    Returns:
        The offsets in bytes, and how many bytes they take together.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first)):
        own = lifetimes[index]
        neighbours = [i for i in placed if lifetimes[i].first <= own.last and own.first <= lifetimes[i].last]
        offset = 0
        for i in sorted(neighbours, key=offsets.__getitem__):
            if offset + _padded(own.nbytes) <= offsets[i]:
                break
            offset = max(offset, offsets[i] + _padded(lifetimes[i].nbytes))
        offsets[index] = offset
        placed.append(index)
    ends = (offset + _padded(one.nbytes) for offset, one in zip(offsets, lifetimes, strict=True))
    return offsets, max(ends, default=0)


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
