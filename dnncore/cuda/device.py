"""A CUDA device behind the seam of `dnncore.backend`."""

from __future__ import annotations

import weakref

import numpy as np

from dnncore.backend import Address, Algorithm, DeviceInfo, Stream
from dnncore.cuda import driver, launch
from dnncore.cuda.context import Context, retained
from dnncore.cuda.launch import Kernel, Unit
from dnncore.cuda.memory import CudaMemory, host_buffer
from dnncore.cuda.owner import Owner
from dnncore.cuda.stream import CudaStream
from dnncore.errors import BadParamError, ClosedError, DeviceNotFoundError
from dnncore.problems import Problem

__all__ = ["CudaDevice", "count", "info", "open_device"]


def count() -> int:
    """Number of CUDA devices of this machine.

    Raises:
        BackendUnavailableError: PyCUDA or the driver is missing; the message says which and the remedy.
    """
    return driver.device_count()


def info(index: int) -> DeviceInfo:
    """Describe a device without making a context on it.

    Raises:
        DeviceNotFoundError: there is no such device; the message says how many there are.
        BackendUnavailableError: PyCUDA or the driver is missing.
    """
    if not 0 <= index < count():
        raise DeviceNotFoundError(f"there is no cuda:{index}; the driver shows {count()} devices, cuda:0 first")
    return DeviceInfo(
        f"cuda:{index}", driver.model(index), driver.total_memory_bytes(index), driver.compute_capability(index)
    )


def open_device(index: int) -> CudaDevice:
    """Open a device for the calling thread.

    Raises:
        DeviceNotFoundError: there is no such device; the message says how many there are.
        BackendUnavailableError: PyCUDA or the driver is missing.
    """
    return CudaDevice(index)


class CudaDevice:
    """A CUDA device as one thread sees it. Owned by one thread; checked.

    The context behind it is the process's and stays; memory and streams are this object's and go with it.
    """

    def __init__(self, index: int) -> None:
        self._info = info(index)
        self._context: Context = retained(index)
        self._owner = Owner(self._info.name)
        self._closed = False
        self._resources: weakref.WeakSet[CudaMemory | CudaStream] = weakref.WeakSet()

    @property
    def info(self) -> DeviceInfo:
        """What it is."""
        return self._info

    def algorithms(self, problem: Problem) -> tuple[Algorithm, ...]:
        """Algorithms for this kind of problem, most specialised first; the last supports everything that is legal."""
        from dnncore.cuda.algorithms import algorithms_for  # here, because every algorithm's module names this class

        return algorithms_for(problem)

    def kernel(self, unit: Unit) -> Kernel:
        """Return the kernel of a unit, compiled and loaded by the first in the process who asks.

        Raises:
            CompilationError: the unit does not compile.
            BackendUnavailableError: there is neither a compiler nor a prebuilt cubin of it.
        """
        return launch.kernel(self._context, unit)

    def allocate(self, nbytes: int) -> CudaMemory:
        """Uninitialised memory, 256-byte aligned.

        Raises:
            OutOfMemoryError: there is no room; the message says what was asked for and what is free.
        """
        self._check()
        memory = CudaMemory(self._context, nbytes)
        self._resources.add(memory)
        return memory

    def host_buffer(self, nbytes: int) -> np.ndarray:
        """Page-locked host memory (uint8), kept until no array looks into it any more."""
        self._check()
        return host_buffer(self._context, nbytes)

    def create_stream(self) -> CudaStream:
        """Open a queue of its own."""
        self._check()
        stream = CudaStream(self._context)
        self._resources.add(stream)
        return stream

    def copy_to_device(self, stream: Stream, destination: Address, source: np.ndarray) -> None:
        """Enqueue a copy of a contiguous host array; `source` must stay unchanged until the stream has passed it."""
        assert isinstance(stream, CudaStream)
        queue = self._queue_for_copy(stream, source)
        if source.nbytes:
            with self._context:
                driver.copy_to_device(destination, source, queue)

    def copy_to_host(self, stream: Stream, destination: np.ndarray, source: Address) -> None:
        """Enqueue a copy into a contiguous host array, which is valid once the stream has passed it."""
        assert isinstance(stream, CudaStream)
        queue = self._queue_for_copy(stream, destination)
        if destination.nbytes:
            with self._context:
                driver.copy_to_host(destination, source, queue)

    def _queue_for_copy(self, stream: CudaStream, array: np.ndarray) -> driver.DriverStream:
        if not array.flags.c_contiguous:
            raise BadParamError(f"a host array of strides {array.strides} bytes is not contiguous; copy it first")
        queue = stream.driver_stream
        stream.keep(array)
        return queue

    def _check(self) -> None:
        self._owner.check()
        if self._closed:
            raise ClosedError(f"{self._info.name} was used after close()")

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        self._owner.check()
        self._closed = True
        for resource in list(self._resources):
            resource.release()
