"""Scratch memory that the launches of one stream share: they run one after the other, so one block serves them all."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from dnncore.backend import TICKET_BYTES, Address, Device, Memory, Stream

__all__ = ["Workspace", "allocate"]


def allocate(device: Device, nbytes: int) -> Memory:
    """A workspace of this many bytes, of undefined contents, `TICKET_BYTES` into the block; these are 0 when it returns.

    Raises:
        OutOfMemoryError: the device has no room.
    """
    with ExitStack() as undo:
        memory = device.allocate(TICKET_BYTES + nbytes)
        undo.callback(memory.close)
        stream = device.create_stream()
        try:
            device.copy_to_device(stream, memory.at(0), np.zeros(TICKET_BYTES, np.uint8))
        finally:
            stream.close()  # which waits
        undo.pop_all()
    return memory


class Workspace:
    """One block that grows to the largest size asked for. Owned by one thread; its handle checks.

    Args:
        device: Where it lies.
        stream: Whose launches use it.

    Attributes:
        address: Behind the tickets; None as long as nothing was asked for. Not kept: a larger block lies elsewhere.
        nbytes: Held now, but those of the tickets.
    """

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._memory: Memory | None = None
        self.address: Address = None
        self.nbytes = 0

    def reserve(self, nbytes: int) -> Address | None:
        """Address of at least this many bytes, contents undefined, behind the tickets; None for 0."""
        if nbytes == 0:
            return None
        if self.nbytes < nbytes:
            self.close()
            self._memory = allocate(self._device, nbytes)
            self.address, self.nbytes = self._memory.at(TICKET_BYTES), nbytes
        return self.address

    def rebind(self, stream: Stream) -> None:
        """Serve another stream, which waits for what the one before was given."""
        self._stream = stream

    def _let_go(self) -> Memory | None:
        memory, self._memory, self.address, self.nbytes = self._memory, None, None, 0
        return memory

    def abandon(self) -> None:
        """Give it back from whichever thread, for an owner that has ended."""
        memory = self._let_go()
        if memory is not None:
            memory.abandon()

    def close(self) -> None:
        """Wait for the launches that use it, then give it back."""
        if self._memory is not None:
            self._stream.synchronize()
            self._memory.close()
            self._let_go()
