"""Scratch memory that the launches of one stream share: they run one after the other, so one block serves them all."""

from __future__ import annotations

from dnncore.backend import Address, Device, Memory, Stream

__all__ = ["Workspace"]


class Workspace:
    """One block that grows to the largest size asked for. Owned by one thread; its handle checks.

    Args:
        device: Where it lies.
        stream: Whose launches use it.
    """

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._memory: Memory | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return 0 if self._memory is None else self._memory.nbytes

    def reserve(self, nbytes: int) -> Address | None:
        """Address of at least this many bytes, contents undefined; None for 0."""
        if nbytes == 0:
            return None
        if self._memory is None or self._memory.nbytes < nbytes:
            self.close()
            self._memory = self._device.allocate(nbytes)
        return self._memory.at(0)

    def rebind(self, stream: Stream) -> None:
        """Serve another stream, which waits for what the one before was given."""
        self._stream = stream

    def abandon(self) -> None:
        """Give it back from whichever thread, for an owner that has ended."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.abandon()

    def close(self) -> None:
        """Wait for the launches that use it, then give it back."""
        if self._memory is not None:
            self._stream.synchronize()
            self._memory.close()
            self._memory = None
