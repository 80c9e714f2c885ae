"""Bytes that kernels move: what those that compute next to nothing are estimated by. Pure."""

from __future__ import annotations

from functools import lru_cache

from dnncore.problems import Problem

__all__ = ["operand_bytes", "touched_bytes"]

_SECTOR_BYTES = 32
"""Least that is read or written of memory, however few of its bytes are wanted."""


def touched_bytes(elements: int, itemsize: int, step: int, sharing: int = 1) -> int:
    """Bytes of memory that are read or written for elements of which neighbouring threads take every step-th.

    Args:
        elements: How many.
        itemsize: Of each, in bytes.
        step: Distance between those of neighbouring threads, in elements; 0 where they take the same.
        sharing: Elements that the threads of a block take of the same piece of memory, if they fit.
    """
    return elements * max(itemsize, min(_SECTOR_BYTES, step * itemsize) // max(sharing, 1))


@lru_cache(maxsize=16)  # most algorithms ask, one after the other
def operand_bytes(problem: Problem) -> int:
    """Bytes of all operands: the fewest that an operation can move."""
    return sum([tensor.size * tensor.dtype.itemsize for tensor in (*problem.inputs, *problem.outputs)])
