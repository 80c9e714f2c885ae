"""Device memory that several executors take turns with: those for several numbers of images of one net, or of several nets."""

from __future__ import annotations

from typing import Self

import numpy as np

from dnncore.backend import TICKET_BYTES
from dnncore.descriptors import TensorDescriptor
from dnncore.handle import Handle
from dnncore.tensor import Tensor

__all__ = ["SharedMemory"]


class SharedMemory:
    """One block for values and scratch, as large as its first executor needs. Owned by one thread; its handle checks.

    Its executors never run at the same time: all enqueue on the handle's stream, and each `run` brings its inputs and takes its
    outputs away. Make the one for the most images first: for one that needs more than there is a new block is made, which those
    after it use too.

    Args:
        handle: Whose executors share.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._blocks: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        """Device memory held now."""
        return sum(block.nbytes for block in self._blocks)

    def block(self, nbytes: int) -> Tensor:
        """At least so many bytes, contents undefined, behind the tickets, which are 0.

        Raises:
            OutOfMemoryError: the device has no room.
        """
        wanted = TICKET_BYTES + nbytes
        if not self._blocks or self._blocks[-1].nbytes < wanted:
            self._blocks.append(self.handle.tensor((wanted,), "int8"))
            tickets = self._blocks[-1].view(TensorDescriptor.packed((TICKET_BYTES,), "int8"))
            tickets.assign(np.zeros(TICKET_BYTES, np.int8))
        return self._blocks[-1]

    def close(self) -> None:
        """Give the memory back, once the executors are closed; a second call does nothing."""
        for block in self._blocks:
            block.close()  # which waits for the stream
        self._blocks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
