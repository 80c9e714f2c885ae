"""Blocks of a piece of memory, given out and taken back: buddies of powers of two."""

from __future__ import annotations

__all__ = ["Blocks"]

_SMALLEST = 4096


class Blocks:
    """Which parts of so many bytes are free. Owned by one thread; not checked.

    A block is a power of two and begins at a multiple of itself. When it comes back it joins the other half of what it was cut
    from, if that is free, so large blocks are there again when nothing is out.

    Args:
        nbytes: A power of two, 4096 or more.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes < _SMALLEST or nbytes & (nbytes - 1):
            raise ValueError(f"{nbytes} bytes are no power of two from {_SMALLEST} on")
        self._nbytes = nbytes
        self._free: dict[int, set[int]] = {size: set() for size in _sizes(nbytes)}
        self._free[nbytes].add(0)
        self._taken: dict[int, int] = {}

    def take(self, nbytes: int) -> int | None:
        """The offset of a block that holds so many bytes; None: there is none."""
        wanted = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        size = next((size for size, free in self._free.items() if size >= wanted and free), None)
        if size is None:
            return None
        offset = self._free[size].pop()
        while size > wanted:
            size //= 2
            self._free[size].add(offset + size)
        self._taken[offset] = size
        return offset

    def give_back(self, offset: int) -> None:
        """Take a block back."""
        size = self._taken.pop(offset)
        while size < self._nbytes and (buddy := offset ^ size) in self._free[size]:
            self._free[size].remove(buddy)
            offset, size = min(offset, buddy), 2 * size
        self._free[size].add(offset)


def _sizes(nbytes: int) -> list[int]:
    return [1 << power for power in range(_SMALLEST.bit_length() - 1, nbytes.bit_length())]
