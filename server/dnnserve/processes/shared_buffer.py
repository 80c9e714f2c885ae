"""Bytes that two processes map."""

from __future__ import annotations

import mmap
import os

import numpy as np

__all__ = ["SharedBuffer"]


class SharedBuffer:
    """An anonymous file, mapped. Owned by one thread.

    Args:
        fd: The file, which this keeps and closes.

    Attributes:
        bytes: uint8, all of them, from the beginning of a page; they stay mapped as long as an array looks into them.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.bytes = np.frombuffer(mmap.mmap(fd, 0), np.uint8)

    @classmethod
    def of(cls, nbytes: int) -> SharedBuffer:
        """Make one, of zeros."""
        fd = os.memfd_create("dnnserve-buffer")
        os.truncate(fd, max(nbytes, 1))
        return cls(fd)

    def view(self, shape: tuple[int, ...]) -> np.ndarray:
        """Its first bytes as float32 of a shape."""
        count = int(np.prod(shape))
        return self.bytes[: 4 * count].view(np.float32).reshape(shape)

    def close(self) -> None:
        """Close the file; what is mapped stays. A second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
