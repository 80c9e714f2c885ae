"""Memory of the CPU as a device: NumPy byte arrays, our own and those of other libraries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dnncore.dlpack import Borrowed, laid_over
from dnncore.errors import BadParamError, ClosedError, OutOfMemoryError

__all__ = ["ReferenceMemory"]

_ALIGNMENT = 256


class ReferenceMemory:
    """A byte array. Owned by one thread.

    It is freed with the last array that looks into it, so whoever holds it needs do nothing but keep the array.
    """

    def __init__(self, raw: np.ndarray) -> None:
        self._bytes: np.ndarray | None = raw
        self.nbytes = raw.size
        self._start = int(raw.ctypes.data)  # asking NumPy takes longer than a small operation's checks together

    @classmethod
    def allocated(cls, nbytes: int) -> ReferenceMemory:
        """Allocate uninitialised memory.

        Raises:
            OutOfMemoryError: there is no room.
        """
        try:
            raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"cpu has no room for {nbytes} B; use a smaller batch, or close what is not needed"
            ) from error
        start = -raw.ctypes.data % _ALIGNMENT
        return cls(raw[start : start + nbytes])

    @classmethod
    def wrapped(cls, borrowed: Borrowed) -> ReferenceMemory:
        """See memory of another library.

        Raises:
            BadParamError: its elements are not aligned.
        """
        descriptor, pointer = borrowed.descriptor, borrowed.pointer
        if pointer % descriptor.dtype.itemsize:
            raise BadParamError(f"{descriptor} at address {pointer:#x} is not aligned to its elements")
        if not descriptor.size:
            borrowed.release()
            return cls(np.empty(0, np.uint8))
        return cls(
            laid_over(pointer, (descriptor.nbytes,), (1,), 1, read_only=borrowed.read_only, release=borrowed.release)
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._bytes is None

    @property
    def reusable(self) -> bool:
        """No: arrays may look into it, of which nobody is told."""
        return False

    def at(self, offset_bytes: int) -> np.ndarray:
        """The bytes from an offset on."""
        if self._bytes is None:
            raise ClosedError("the memory was closed")
        return self._bytes[offset_bytes:]

    def pointer(self, offset_bytes: int) -> int:
        """The address of the byte at an offset."""
        if self._bytes is None:
            raise ClosedError("the memory was closed")
        return self._start + offset_bytes

    def hold(self) -> Callable[[], None]:
        """Keep the bytes beyond `close`, until the returned function is called, once, in any thread."""
        return [self.at(0)].clear

    def close(self) -> None:
        """Give the memory back."""
        self._bytes = None

    abandon = close
