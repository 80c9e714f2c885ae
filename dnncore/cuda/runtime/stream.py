"""An ordered queue of work on a CUDA device."""

from __future__ import annotations

from threading import get_ident

import numpy as np

from dnncore.cuda.runtime import driver, driver_event
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.event import CudaEvent
from dnncore.cuda.runtime.owner import Owner
from dnncore.errors import BadParamError, ClosedError, DeviceError

__all__ = ["CudaStream"]


class CudaStream:
    """A CUDA stream. Owned by one thread; checked.

    Args:
        context: Of its device.
        external: The CUstream of somebody else, who destroys it later; None for one of our own that does not wait for the default
            stream.

    Raises:
        BadParamError: `external` belongs to another context.
    """

    def __init__(self, context: Context, external: int | None = None) -> None:
        self._context = context
        self._owner = Owner(f"stream of {context.name}")
        self._ident = get_ident()
        # A copy may be under way after the call that enqueued it has returned.
        self._copying: dict[int, np.ndarray] = {}
        with context:
            self._stream: driver.DriverStream | None = (
                driver.create_stream() if external is None else _checked(context, external)
            )
        self._handle = self._stream.handle
        self._successor: CudaStream | None = None
        context.add_user(self)

    def adopt(self) -> None:
        """Belong to the calling thread from now on."""
        self._owner.adopt()
        self._ident = get_ident()

    @property
    def handle(self) -> int:
        """The CUstream.

        Raises:
            OwnerError: the calling thread is not the owner.
            ClosedError: the stream was given back.
        """
        if get_ident() != self._ident:
            self._owner.check()  # which refuses
        if self._stream is None:
            raise ClosedError(f"stream of {self._context.name} was used after close()")
        return self._handle

    @property
    def last_handle(self) -> int:
        """The CUstream in any thread: its own, its successor's, or, once all work has ended, the legacy default one."""
        stream = self
        while stream._stream is None and stream._successor is not None:
            stream = stream._successor
        return driver.STREAM_LEGACY if stream._stream is None else stream._handle

    def keep(self, array: np.ndarray) -> None:
        """Keep a host array alive until the stream has passed what was enqueued so far."""
        self._copying[id(array)] = array

    def record_event(self) -> CudaEvent:
        """Mark what was enqueued so far."""
        return CudaEvent(self._context, self.handle)

    def wait(self, event: object) -> None:
        """Let what is enqueued from now on wait for an event, of whichever stream, thread or CUDA device.

        Raises:
            BadParamError: the event is of another backend.
        """
        if not isinstance(event, CudaEvent):
            raise BadParamError(f"a stream of {self._context.name} cannot wait for {event!r}: it is of another backend")
        with self._context:
            driver_event.wait_for_event(self.handle, event.handle)

    def precede(self, other: int) -> None:
        """Let another library's stream wait for what was enqueued here."""
        self._order(self.handle, other)

    def follow(self, other: int) -> None:
        """Wait for what was enqueued on another library's stream."""
        self._order(other, self.handle)

    def _order(self, first: int, second: int) -> None:
        if first == second:
            return
        with self._context:
            event = driver_event.create_event(timed=False)
            try:
                driver_event.record_event(event, first)
                driver_event.wait_for_event(second, event)
            finally:
                driver_event.destroy_event(event)

    def synchronize(self) -> None:
        """Block, without the GIL, until everything enqueued has run.

        Raises:
            DeviceFaultError: something that was enqueued failed.
        """
        handle = self.handle
        with self._context:
            driver.synchronize_stream(handle)
        self._copying.clear()

    def close(self) -> None:
        """Wait for the work, then give the stream back; a second call does nothing.

        Raises:
            DeviceFaultError: something that was enqueued failed; the stream is given back all the same.
        """
        self._owner.check()
        if self._stream is not None:
            try:
                self.synchronize()
            finally:
                self.release()

    def take_over(self, other: object) -> None:
        """Go on after another stream of the same device and thread: wait for what it was given, on the device, and give it back."""
        assert isinstance(other, CudaStream)
        self.follow(other.handle)
        self._copying.update(other._copying)
        other._successor = self
        other.release()  # the driver destroys a stream only after its work

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""
        if self._stream is None or self._context.forked:
            return
        try:
            with self._context:
                driver.synchronize_stream(self._handle)  # what its work uses goes back next
        except DeviceError:
            pass  # a lost device does nothing any more
        finally:
            self.release()

    def release(self) -> None:
        """Give the stream back from whichever thread, without asking how its work went; a second call does nothing."""
        if self._stream is None:
            return
        self._context.remove_user(self)
        with self._context:
            self._stream = None  # the last reference: PyCUDA destroys the stream here
        self._copying.clear()


def _checked(context: Context, handle: int) -> driver.ExternalStream:
    """The stream behind a handle, 0 being the legacy default stream."""
    stream = driver.ExternalStream(handle or driver.STREAM_LEGACY)
    if stream.handle > driver.STREAM_PER_THREAD and driver.stream_context(stream.handle) != driver.current_context():
        raise BadParamError(
            f"stream {handle:#x} belongs to another device than {context.name}, or to another context than its primary one"
        )
    return stream
