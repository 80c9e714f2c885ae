"""Lifetimes to offsets: where in one block tensors lie that are not all needed at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["ALIGNMENT_BYTES", "Lifetime", "assign_offsets", "live_bytes"]

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


_ROUNDS = 4
"""How often an order is changed by what it led to. MobileNetV2's block in fp16 is as small as it can be after the second."""


def assign_offsets(lifetimes: Sequence[Lifetime], scratch: Mapping[int, int] | None = None) -> tuple[list[int], int]:
    """Give each its place as low as those that live at the same time allow: in three orders, of which the best one counts.

    The largest first; those first that live at the step at which most is needed, then at the next such step; or the largest first,
    but at last those that are needed all along, so that they lie above what comes and goes. Then what came to
    lie highest goes first, a few times over.

    Args:
        lifetimes: What needs a place.
        scratch: Bytes from offset 0 on that a step needs for itself, by the step: nothing that lives then may lie there.

    Returns:
        The offsets in bytes, and how many bytes everything takes together.
    """
    fixed = [Lifetime(nbytes, step, step) for step, nbytes in (scratch or {}).items() if nbytes]
    by_size = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first))
    steps = {one.first for one in (*lifetimes, *fixed)}  # what is needed grows at these alone
    needed = {step: live_bytes((*lifetimes, *fixed), step) for step in steps}
    least = max(needed.values(), default=0)
    widest = sorted(steps, key=lambda step: (-needed[step], step))
    by_need = [i for step in widest for i in by_size if lifetimes[i].first <= step <= lifetimes[i].last]
    end = max((one.last for one in lifetimes), default=0)
    lasting = {i for i, one in enumerate(lifetimes) if one.first < 0 and one.last == end}
    lasting_last = sorted(by_size, key=lambda i: i in lasting)
    orders = (by_size, list(dict.fromkeys(by_need)), lasting_last)
    found = [(_offsets_in_order(lifetimes, fixed, order), order) for order in orders]
    best, order = min(found, key=lambda one: one[0][1])
    offsets = best[0]
    for _ in range(_ROUNDS):
        passing = [i for i in order if i not in lasting]
        if best[1] == least or not passing:
            break
        highest = max(passing, key=lambda i: offsets[i] + lifetimes[i].nbytes)
        order = [highest, *(i for i in order if i != highest)]
        offsets, nbytes = _offsets_in_order(lifetimes, fixed, order)
        best = min(best, (offsets, nbytes), key=lambda one: one[1])
    return best


def _offsets_in_order(
    lifetimes: Sequence[Lifetime], fixed: Sequence[Lifetime], order: Sequence[int]
) -> tuple[list[int], int]:
    placed: list[tuple[int, Lifetime]] = [(0, one) for one in fixed]
    offsets = [0] * len(lifetimes)
    for index in order:
        own = lifetimes[index]
        neighbours = [other for other in placed if other[1].first <= own.last and own.first <= other[1].last]
        offset = 0
        for taken, other in sorted(neighbours):
            if offset + _padded(own.nbytes) <= taken:
                break
            offset = max(offset, taken + _padded(other.nbytes))
        offsets[index] = offset
        placed.append((offset, own))
    return offsets, max((offset + _padded(one.nbytes) for offset, one in placed), default=0)


def live_bytes(lifetimes: Iterable[Lifetime], step: int) -> int:
    """What those take together that are needed at a step."""
    return sum(_padded(one.nbytes) for one in lifetimes if one.first <= step <= one.last)


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
