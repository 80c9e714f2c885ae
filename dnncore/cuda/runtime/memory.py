"""Device memory, and the page-locked host memory that copies to and from it at full speed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from dnncore.cuda.calls import ALIGNMENT_BYTES
from dnncore.cuda.runtime import driver
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.owner import Owner
from dnncore.cuda.runtime.stream import CudaStream
from dnncore.errors import BadParamError, ClosedError, OutOfMemoryError

__all__ = ["CudaMemory", "host_buffer", "lock_pages"]


class CudaMemory:
    """A block of device memory. Owned by one thread; checked.

    It is given back when its owner has closed it and nobody holds it any more, at the latest at the interpreter's exit.

    Args:
        context: Of its device.
        address: Where it begins.
        nbytes: Size in bytes.
        give_back: Frees it, with the context current, in whichever thread lets go last.
        borrowed: Whether it is another library's, which is told when nobody uses it any more, but not at the interpreter's
            exit: that library may be gone by then.

    Attributes:
        closed: Whether its owner has given it back.
    """

    def __init__(
        self,
        context: Context,
        address: int,
        nbytes: int,
        give_back: Callable[[], object],
        *,
        borrowed: bool = False,
    ) -> None:
        self._context = context
        self._nbytes = nbytes
        self._owner = Owner(f"memory of {context.name}")
        self._address = address
        self.closed = False
        # Guards _holders and _give_back; reentrant, as a collection inside it may let go of this block in the same thread.
        self._lock = threading.RLock()
        self._holders = 1
        self._give_back: Callable[[], object] | None = give_back
        self._ordered = self._exported = False
        if not borrowed:
            context.add_user(self)

    @classmethod
    def allocated(cls, context: Context, nbytes: int) -> CudaMemory:
        """Allocate uninitialised memory.

        Raises:
            OutOfMemoryError: there is no room; the message says what was asked for and what is free.
        """
        with _room(context, nbytes), context:
            allocation = driver.allocate(max(nbytes, 1))
        address = int(allocation)
        assert address % ALIGNMENT_BYTES == 0
        return cls(context, address, nbytes, allocation.free)

    @classmethod
    def ordered(cls, context: Context, nbytes: int, stream: CudaStream) -> CudaMemory:
        """Allocate from the device's pool, in the order of a stream's work; the memory goes back in that order, too.

        Raises:
            OutOfMemoryError: there is no room; the message says what was asked for and what is free.
        """
        with _room(context, nbytes), context:
            address = driver.allocate_ordered(context.index, max(nbytes, 1), stream.handle)
        memory = cls(context, address, nbytes, lambda: driver.free_ordered(address, stream.last_handle))
        memory._ordered = True
        return memory

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._nbytes

    @property
    def reusable(self) -> bool:
        """Whether it is a stream's, and no other library was given it."""
        return self._ordered and not self._exported and not self.closed

    def at(self, offset_bytes: int) -> int:
        """Address `offset_bytes` into the block.

        Raises:
            BadParamError: that is outside the block.
            ClosedError: the block was given back.
        """
        self._owner.check()
        if self.closed:
            raise ClosedError(f"memory of {self._context.name} ({self._nbytes} B) was used after close()")
        if not 0 <= offset_bytes <= self._nbytes:
            raise BadParamError(f"offset {offset_bytes} B lies outside a block of {self._nbytes} B")
        return self._address + offset_bytes

    def pointer(self, offset_bytes: int) -> int:
        """`at`, for other libraries."""
        return self.at(offset_bytes)

    def adopt(self) -> None:
        """Belong to the calling thread from now on."""
        self._owner.adopt()

    def hold(self) -> Callable[[], None]:
        """Keep the block beyond `close`, until the returned function is called, once, in any thread."""
        self.at(0)
        with self._lock:
            self._holders += 1
            self._exported = True
        return self._let_go

    def _let_go(self) -> None:
        with self._lock:
            self._holders -= 1
            held = self._holders > 0
        if not held:
            self.release()

    def close(self) -> None:
        """Give the memory back once nobody holds it; a second call does nothing. The driver waits for work that still uses it."""
        self._owner.check()
        self.abandon()

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""
        with self._lock:
            closed, self.closed = self.closed, True
        if not closed:
            self._let_go()

    def release(self) -> None:
        """Give the memory back from whichever thread, whoever holds it; a second call does nothing."""
        if self._context.forked:
            return  # what is the parent's stays, and so does PyCUDA's object for it
        with self._lock:
            give_back, self._give_back = self._give_back, None
        if give_back is not None:
            with self._context:
                if self._ordered and self._exported:
                    driver.synchronize_context()  # another library may use it on streams that ours knows nothing of
                give_back()
            self._context.remove_user(self)


@contextmanager
def _room(context: Context, nbytes: int) -> Iterator[None]:
    """Say what was asked for, and what there is, where there is no room."""
    try:
        yield
    except OutOfMemoryError as error:
        with context:
            free, total = driver.memory_bytes()
        raise OutOfMemoryError(
            f"{context.name} has no room for {nbytes} B: {free} of its {total} B are free; "
            "use a smaller batch or a workspace limit, or close what is not needed"
        ) from error


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
    _free_with(array, context, allocation)
    return array[:nbytes]


def lock_pages(context: Context, array: np.ndarray) -> Callable[[], None]:
    """Page-lock memory that is there already, for copies at full speed and beside the processor.

    Args:
        context: Of the device that copies.
        array: uint8, contiguous, on pages of its own, as `mmap` gives them; kept until they are unlocked.

    Returns:
        Waits for everything that the device was given, and unlocks; for any thread. A second call does nothing.

    Raises:
        OutOfMemoryError: the host has no room that it may lock.
        DeviceError: the driver does not lock such memory.
    """
    with context:
        driver.register_host(array)
    return _LockedPages(context, array).release


class _LockedPages:
    """Memory of somebody else's while it is page-locked. Thread-safe: `_lock` guards `_array`."""

    def __init__(self, context: Context, array: np.ndarray) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._array: np.ndarray | None = array
        context.add_user(self)

    def release(self) -> None:
        """Unlock it, at the latest at the interpreter's exit; a second call does nothing."""
        if self._context.forked:
            return
        with self._lock:
            array, self._array = self._array, None
        if array is not None:
            self._context.remove_user(self)
            with self._context:
                driver.synchronize_context()  # a copy that is under way may read pages that are others' by then
                driver.unregister_host(array)


def _free_with(array: np.ndarray, context: Context, allocation: driver.DriverAllocation) -> None:
    memory = _HostMemory(context, allocation)
    finalizer = weakref.finalize(array, memory.release)
    finalizer.atexit = False  # the context does it


class _HostMemory:
    """Page-locked memory while an array looks into it. Thread-safe."""

    def __init__(self, context: Context, allocation: driver.DriverAllocation) -> None:
        self._context = context
        self._allocation: driver.DriverAllocation | None = allocation
        context.add_user(self)

    def release(self) -> None:
        """Free it, once the array is gone or at the interpreter's exit; a second call does nothing."""
        if self._context.forked:
            return
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            self._context.remove_user(self)
            with self._context:
                allocation.free()
