"""Device memory that several executors take turns with: those for several numbers of images of one net, or of several nets."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

import numpy as np

from dnncore.backend import TICKET_BYTES, Stream
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import ClosedError
from dnncore.handle import Handle
from dnncore.tensor import Tensor

__all__ = ["SharedMemory"]


class SharedMemory:
    """One block for values and scratch, as large as its first executor needs. Owned by one thread; its handle checks.

    Its executors never run at the same time: all enqueue on one stream, and each `run` brings its inputs and takes its outputs
    away. Make the one for the most images first: for one that needs more than there is a new block is made, which those after it
    use too.

    Args:
        handle: Whose executors share.
        stream: Where they run, one of the handle's device; None for the handle's own.
    """

    def __init__(self, handle: Handle, stream: Stream | None = None) -> None:
        self.handle = handle
        self._stream = stream
        self._blocks: list[Tensor] = []

    @property
    def stream(self) -> Stream:
        """Where all that uses the memory runs, one after the other."""
        return self.handle.stream if self._stream is None else self._stream

    @property
    def is_beside(self) -> bool:
        """Whether that is a stream beside the handle's, which events order."""
        return self._stream is not None

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
        """Wait for the stream and give the memory back, once the executors are closed; a second call does nothing."""
        if self._blocks and self._stream is not None:
            with suppress(ClosedError):  # a stream that was closed has nothing left to do
                self._stream.synchronize()
        for block in self._blocks:
            block.close()  # which waits for the handle's stream
        self._blocks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
