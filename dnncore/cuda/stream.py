"""An ordered queue of work on a CUDA device."""

from __future__ import annotations

import numpy as np

from dnncore.cuda import driver
from dnncore.cuda.context import Context
from dnncore.cuda.owner import Owner
from dnncore.errors import ClosedError

__all__ = ["CudaStream"]


class CudaStream:
    """A CUDA stream that does not wait for the default stream. Owned by one thread; checked."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._owner = Owner(f"stream of {context.name}")
        # PyCUDA forgets a host array as soon as its copy is enqueued; the copy may still be under way then.
        self._copying: dict[int, np.ndarray] = {}
        with context:
            self._stream: driver.DriverStream | None = driver.create_stream()
        context.add_user(self)

    @property
    def driver_stream(self) -> driver.DriverStream:
        """PyCUDA's stream, to enqueue something on.

        Raises:
            OwnerError: the calling thread is not the owner.
            ClosedError: the stream was given back.
        """
        self._owner.check()
        if self._stream is None:
            raise ClosedError(f"stream of {self._context.name} was used after close()")
        return self._stream

    def keep(self, array: np.ndarray) -> None:
        """Keep a host array alive until the stream has passed what was enqueued so far."""
        self._copying[id(array)] = array

    def synchronize(self) -> None:
        """Block, without the GIL, until everything enqueued has run.

        Raises:
            DeviceFaultError: something that was enqueued failed.
        """
        self._owner.check()
        with self._context:
            # No local variable: the traceback of a fault would keep the stream alive beyond its context.
            self.driver_stream.synchronize()
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

    def release(self) -> None:
        """Give the stream back from whichever thread ends the process, without asking how its work went."""
        self._context.remove_user(self)
        with self._context:
            self._stream = None  # the last reference: PyCUDA destroys the stream here
        self._copying.clear()
