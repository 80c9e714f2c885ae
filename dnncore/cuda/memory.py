"""Device memory, and the page-locked host memory that copies to and from it at full speed."""

from __future__ import annotations

import weakref

import numpy as np

from dnncore.cuda import driver
from dnncore.cuda.context import Context
from dnncore.cuda.owner import Owner
from dnncore.errors import BadParamError, ClosedError, OutOfMemoryError

__all__ = ["ALIGNMENT_BYTES", "CudaMemory", "host_buffer"]

ALIGNMENT_BYTES = 256
"""What cuMemAlloc promises for every allocation."""


class CudaMemory:
    """A block of device memory. Owned by one thread; checked.

    Raises:
        OutOfMemoryError: there is no room; the message says what was asked for and what is free.
    """

    def __init__(self, context: Context, nbytes: int) -> None:
        self._context = context
        self._nbytes = nbytes
        self._owner = Owner(f"memory of {context.name}")
        try:
            with context:
                self._allocation: driver.DriverAllocation | None = driver.allocate(max(nbytes, 1))
                self._address = int(self._allocation)
        except OutOfMemoryError as error:
            with context:
                free, total = driver.memory_bytes()
            raise OutOfMemoryError(
                f"{context.name} has no room for {nbytes} B: {free} of its {total} B are free; "
                "use a smaller batch or a workspace limit, or close what is not needed"
            ) from error
        assert self._address % ALIGNMENT_BYTES == 0
        context.add_user(self)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._nbytes

    def at(self, offset_bytes: int) -> int:
        """Address `offset_bytes` into the block.

        Raises:
            BadParamError: that is outside the block.
            ClosedError: the block was given back.
        """
        self._owner.check()
        if self._allocation is None:
            raise ClosedError(f"memory of {self._context.name} ({self._nbytes} B) was used after close()")
        if not 0 <= offset_bytes <= self._nbytes:
            raise BadParamError(f"offset {offset_bytes} B lies outside a block of {self._nbytes} B")
        return self._address + offset_bytes

    def close(self) -> None:
        """Give the memory back; a second call does nothing. The driver waits for work that still uses it."""
        self._owner.check()
        self.release()

    def release(self) -> None:
        """close() from whichever thread ends the process."""
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            self._context.remove_user(self)
            with self._context:
                allocation.free()


def host_buffer(context: Context, nbytes: int) -> np.ndarray:
    """Allocate page-locked host memory (uint8).

    It is freed with the last array that looks into it, in whichever thread that happens, so that no array ever dangles.

    Raises:
        OutOfMemoryError: the host has no room that it may lock.
    """
    try:
        with context:
            array, allocation = driver.allocate_host(max(nbytes, 1))
    except OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"the host has no room for {nbytes} B of page-locked memory; use a smaller batch, or close what is not needed"
        ) from error
    weakref.finalize(array, _free_host, context, allocation)
    return array[:nbytes]


def _free_host(context: Context, allocation: driver.DriverAllocation) -> None:
    with context:
        allocation.free()
