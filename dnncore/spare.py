"""Memory that results have left, for the results that come after them in the same order: nothing asks the device for it."""

from __future__ import annotations

from dnncore.backend import Memory

__all__ = ["MOST_BLOCK_BYTES", "MOST_BYTES", "Spare"]

MOST_BYTES = 1 << 25
"""That are kept for what comes; all else goes back to the device's pool, where other handles find it."""

MOST_BLOCK_BYTES = 1 << 22
"""Of one block: work on a larger one takes longer than asking for it."""


class Spare:
    """Blocks that nobody uses any more, by their size. Owned by one thread; `keep` is any thread's.

    They are of one stream's order, as the pool's memory is: whoever takes one enqueues behind what used it before.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, list[Memory]] = {}
        self._nbytes = 0  # about as many: two threads that keep blocks at one moment may count one of them

    def take(self, nbytes: int) -> Memory | None:
        """A block of just this size; None where there is none."""
        blocks = self._blocks.get(nbytes)
        if not blocks:
            return None
        self._nbytes -= nbytes
        return blocks.pop()

    def keep(self, memory: Memory) -> bool:
        """Keep a block, if it may be used again and there is room for it; else it is the caller's to give back."""
        nbytes = memory.nbytes
        if not memory.reusable or nbytes > MOST_BLOCK_BYTES or self._nbytes + nbytes > MOST_BYTES:
            return False
        self._nbytes += nbytes
        self._blocks.setdefault(nbytes, []).append(memory)
        return True

    def abandon(self) -> None:
        """Give all of it back, from whichever thread."""
        blocks, self._blocks, self._nbytes = self._blocks, {}, 0
        for of_size in blocks.values():
            while of_size:
                of_size.pop().abandon()
