"""Memory that several processes map, and the blocks of requests in it."""

from __future__ import annotations

import itertools
import math
import mmap
import os

import numpy as np

__all__ = ["Arena", "ArenaBlock", "block_bytes"]

_ALIGNMENT = 64
_numbers = itertools.count(1)


class Arena:
    """An anonymous file, mapped. Thread-safe but for the bytes, which belong to whoever holds the block that they are in.

    Args:
        fd: The file, which this keeps and closes.

    Attributes:
        bytes: uint8, all of them, from the beginning of a page; they stay mapped as long as an array looks into them.
        number: By which this process calls it when it speaks of it to others.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.number = next(_numbers)
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
        offset: Of the rows, in bytes; a multiple of 64.
        shape: Of the rows.
        pixels: Whether they are uint8; else they are float32.
    """

    __slots__ = ("arena", "offset", "pixels", "shape")

    def __init__(self, arena: Arena, offset: int, shape: tuple[int, ...], pixels: bool) -> None:
        self.arena = arena
        self.offset = offset
        self.shape = shape
        self.pixels = pixels

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def place(self) -> tuple[Arena, int]:
        """The arena and the offset."""
        return self.arena, self.offset

    def read(self) -> np.ndarray:
        """A view of the rows."""
        count, offset = math.prod(self.shape), self.offset
        if self.pixels:
            return self.arena.bytes[offset : offset + count].reshape(self.shape)
        return self.arena.bytes[offset : offset + 4 * count].view(np.float32).reshape(self.shape)

    def outputs(self, width: int) -> np.ndarray:
        """A view of the outputs, float32 [rows, width], as `write` has left them."""
        offset = self.offset + _rounded(math.prod(self.shape) * (1 if self.pixels else 4))
        return self.arena.bytes[offset : offset + 4 * self.shape[0] * width].view(np.float32).reshape(-1, width)

    def write(self, outputs: np.ndarray) -> None:
        """Put the outputs, float32 [rows, ...], into their room."""
        self.outputs(math.prod(outputs.shape[1:]))[...] = outputs.reshape(len(outputs), -1)


def block_bytes(rows_bytes: int, outputs_bytes: int) -> int:
    """What a block takes."""
    return _rounded(rows_bytes) + _rounded(outputs_bytes)


def _rounded(nbytes: int) -> int:
    return nbytes + -nbytes % _ALIGNMENT
