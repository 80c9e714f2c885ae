"""A moment in a CUDA stream's work, which other streams, other threads and the host can wait for."""

from __future__ import annotations

import weakref

from dnncore.cuda.runtime import driver_event
from dnncore.cuda.runtime.context import Context
from dnncore.errors import BadParamError

__all__ = ["CudaEvent"]


class CudaEvent:
    """What was enqueued on a stream up to here. Thread-safe; freed with its last reference.

    Args:
        context: Of the stream's device.
        stream: The CUstream that it is enqueued on.
    """

    def __init__(self, context: Context, stream: int) -> None:
        self._context = context
        with context:
            self.handle = driver_event.create_event(timed=True)
            finalizer = weakref.finalize(self, _destroy, context, self.handle)
            finalizer.atexit = False  # the driver frees it with the process
            driver_event.record_event(self.handle, stream)

    def query(self) -> bool:
        """Whether it has passed.

        Raises:
            DeviceFaultError: something that was enqueued failed.
        """
        with self._context:
            return driver_event.event_has_passed(self.handle)

    def synchronize(self) -> None:
        """Block, without the GIL, until it has passed.

        Raises:
            DeviceFaultError: something that was enqueued failed.
        """
        with self._context:
            driver_event.synchronize_event(self.handle)

    def elapsed_ms(self, since: object) -> float:
        """Wait for both, then tell the device's time from `since` to this one, in milliseconds.

        Raises:
            BadParamError: `since` is of another device.
            DeviceFaultError: something that was enqueued failed.
        """
        if not isinstance(since, CudaEvent) or since._context is not self._context:
            raise BadParamError(f"{since!r} and {self!r} are not of one device: there is no time between them")
        since.synchronize()
        self.synchronize()
        with self._context:
            return driver_event.elapsed_ms(since.handle, self.handle)

    def __repr__(self) -> str:
        return f"CudaEvent({self._context.name})"


def _destroy(context: Context, handle: int) -> None:
    if not context.forked:
        driver_event.destroy_event(handle)
