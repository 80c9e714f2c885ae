"""Memory that several processes map, and the blocks of requests in it.

block     input 0   input 1   output 0   output 1           each from a multiple of 64 bytes, all rows behind one another
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Mapping, Sequence

import numpy as np

from dnnserve.signature import Layout

__all__ = ["Arena", "ArenaBlock"]

_numbers = itertools.count(1)


class Arena:
    """An anonymous file, mapped. Thread-safe but for the bytes, which belong to whoever holds the block that they are in.

    Args:
        fd: The file, which this keeps and closes.

    Attributes:
        bytes: uint8, all of them, from the beginning of a page; they stay mapped as long as an array looks into them.
        number: By which this process calls it when it speaks of it to others.
        page_locked: Whether the device of this process copies from it beside the processor.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.number = next(_numbers)
        self.page_locked = False
        self.bytes = np.frombuffer(mmap.mmap(fd, 0), np.uint8)

    @classmethod
    def of(cls, nbytes: int) -> Arena:
        """Make one, of zeros."""
        fd = os.memfd_create("dnnserve-arena")
        os.truncate(fd, max(nbytes, 1))
        return cls(fd)

    @property
    def closed(self) -> bool:
        """Whether nobody will speak of it any more."""
        return self.fd < 0

    def close(self) -> None:
        """Close the file; what is mapped stays. A second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def leave(self) -> None:
        """Close the file, and give the mapping up once no array looks into it, which keeps the file open otherwise."""
        self.close()
        self.bytes = np.empty(0, np.uint8)


class ArenaBlock:
    """A request's rows in an arena, and behind them the room for its outputs: one that is repeated finds its rows as they were.

    Owned by one process and thread at a time; not checked.

    Args:
        arena: Where.
        offset: Of the block, in bytes; a multiple of 64.
        layout: Of its tensors.
        pixels: Whether the rows are uint8 in place of the only input.
    """

    __slots__ = ("arena", "layout", "offset", "pixels")

    def __init__(self, arena: Arena, offset: int, layout: Layout, *, pixels: bool) -> None:
        self.arena = arena
        self.offset = offset
        self.layout = layout
        self.pixels = pixels

    def __len__(self) -> int:
        return self.layout.rows

    @property
    def wanted(self) -> tuple[int, ...]:
        """Numbers of the outputs for which there is room."""
        return tuple(self.layout.outputs)

    @property
    def place(self) -> tuple[Arena, int]:
        """The arena and the offset."""
        return self.arena, self.offset

    @property
    def page_locked(self) -> bool:
        """Whether the arena is, now."""
        return self.arena.page_locked

    def read(self) -> Sequence[np.ndarray]:
        """Views of the rows."""
        memory, offset = self.arena.bytes, self.offset
        return [place.view(memory, offset) for place in self.layout.inputs]

    def fill(self, rows: Sequence[np.ndarray]) -> None:
        """Put the rows there."""
        for there, own in zip(self.read(), rows, strict=True):
            there[...] = own

    def outputs(self) -> Mapping[int, np.ndarray]:
        """Views of the outputs that are wanted, by number, as `write` has left them."""
        memory, offset = self.arena.bytes, self.offset
        return {number: place.view(memory, offset) for number, place in self.layout.outputs.items()}

    def write(self, outputs: Mapping[int, np.ndarray], first: int = 0) -> None:
        """Put the outputs into their room."""
        end = first + self.layout.rows
        for number, there in self.outputs().items():
            there[...] = outputs[number][first:end]
