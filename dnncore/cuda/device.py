"""A CUDA device behind the seam of `dnncore.backend`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np

from dnncore.backend import Address, Bound, DeviceInfo, Enqueue, Launch, Stream, Wired
from dnncore.cuda import figures as known
from dnncore.cuda import shipped
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.calls import Calls, described, joined
from dnncore.cuda.runtime import driver, kernels
from dnncore.cuda.runtime.binder import bind, wire
from dnncore.cuda.runtime.context import Context, retained
from dnncore.cuda.runtime.graph import CudaGraph
from dnncore.cuda.runtime.memory import CudaMemory, host_buffer, lock_pages
from dnncore.cuda.runtime.owner import Owner
from dnncore.cuda.runtime.replays import Replays
from dnncore.cuda.runtime.stream import CudaStream
from dnncore.dlpack import Borrowed, DeviceType
from dnncore.errors import BadParamError, ClosedError, DeviceNotFoundError
from dnncore.figures import DeviceFigures
from dnncore.measured import MeasuredChoices
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
        NotSupportedError: the device is older than all that kernels are made for.
    """
    return CudaDevice(index)


class CudaDevice:
    """A CUDA device as one thread sees it. Owned by one thread; checked.

    The context behind it is the process's and stays; memory and streams are this object's and go with it.
    """

    def __init__(self, index: int) -> None:
        self._info = info(index)
        self._context: Context = retained(index)
        self._kernels = kernels.of_context(self._context)
        self._figures = known.of_device(index, self._kernels.architecture)
        self._choices = shipped.choices(self._figures)
        self._owner = Owner(self._info.name)
        self._closed = False
        self._memory: weakref.WeakSet[CudaMemory] = weakref.WeakSet()
        self._streams: weakref.WeakSet[CudaStream] = weakref.WeakSet()
        self._graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()
        self._replays = Replays(self.capture)

    @property
    def info(self) -> DeviceInfo:
        """What it is."""
        return self._info

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """What DLPack calls it: (device type, index)."""
        return DeviceType.CUDA, self._context.index

    @property
    def addresses_are_pointers(self) -> bool:
        """True."""
        return True

    @property
    def figures(self) -> DeviceFigures:
        """What it can do."""
        return self._figures

    @property
    def choices(self) -> MeasuredChoices:
        """What was measured on such a device and comes with the library."""
        return self._choices

    def free_bytes(self) -> int:
        """What the driver says is free now; other processes of the device count."""
        with self._context:
            return driver.memory_bytes()[0]

    def adopt(self) -> None:
        """Belong to the calling thread from now on, with memory, streams and graphs."""
        self._owner.adopt()
        for graph in list(self._graphs):
            graph.adopt()
        for memory in list(self._memory):
            memory.adopt()
        for stream in list(self._streams):
            stream.adopt()

    def algorithms(self, problem: Problem) -> tuple[CudaAlgorithm, ...]:
        """Algorithms for this kind of problem; the last supports everything that is legal."""
        return algorithms_for(problem)

    def bind(self, work: Calls) -> Launch:
        """Make launches of calls.

        Raises:
            CompilationError: a kernel does not compile.
            BackendUnavailableError: there is neither a compiler nor a prebuilt cubin of it.
        """
        return bind(work, self._kernels, self._context)

    def wire(
        self,
        parts: Sequence[Wired],
        stream: Stream,
        scratch_bytes: int = 0,
        replayed_unless: Callable[[], bool] | None = None,
    ) -> Enqueue:
        """Make one function of calls that run in a row, with a workspace behind so many bytes that are operands; of many of them a
        graph where addresses come again, as long as the device is open.

        Raises:
            CompilationError: a kernel does not compile.
            BackendUnavailableError: there is neither a compiler nor a prebuilt cubin of it.
        """
        assert isinstance(stream, CudaStream)
        calls = joined(parts, scratch_bytes)
        enqueue = wire(calls, self._kernels, self._context, stream)
        return enqueue if replayed_unless is None else self._replays.wired(calls, enqueue, stream, replayed_unless)

    def capture(self, steps: Sequence[Bound]) -> CudaGraph:
        """Make a CUDA graph of bound calls."""
        self._check()
        graph = CudaGraph(self._context, self._kernels, steps)
        self._graphs.add(graph)
        return graph

    def describe(self, work: Calls) -> list[str]:
        """A line for each call."""
        return described(work)

    def allocate(self, nbytes: int) -> CudaMemory:
        """Uninitialised memory, 256-byte aligned.

        Raises:
            OutOfMemoryError: there is no room; the message says what was asked for and what is free.
        """
        self._check()
        memory = CudaMemory.allocated(self._context, nbytes)
        self._memory.add(memory)
        return memory

    def allocate_ordered(self, nbytes: int, stream: Stream) -> CudaMemory:
        """Uninitialised memory of the device's pool, for work on one stream: neither taking it nor giving it back waits.

        Raises:
            OutOfMemoryError: there is no room; the message says what was asked for and what is free.
        """
        self._check()
        assert isinstance(stream, CudaStream)
        memory = CudaMemory.ordered(self._context, nbytes, stream)
        self._memory.add(memory)
        return memory

    def wrap_memory(self, borrowed: Borrowed) -> CudaMemory:
        """See memory of another library as a block, which gives it back.

        Raises:
            BadParamError: it is not this device's, or its elements are not aligned.
        """
        self._check()
        descriptor, pointer = borrowed.descriptor, borrowed.pointer
        if pointer % descriptor.dtype.itemsize:
            raise BadParamError(f"{descriptor} at address {pointer:#x} is not aligned to its elements")
        if borrowed.device is None and descriptor.size:
            with self._context:
                index = driver.pointer_device(pointer)
            if index != self._context.index:
                where = "no device's" if index is None else f"cuda:{index}'s"
                raise BadParamError(
                    f"the array at {pointer:#x} is in {where} memory, this handle is of {self._info.name}; "
                    "use a handle of its device, or upload a copy from the host"
                )
        memory = CudaMemory(self._context, pointer, descriptor.nbytes, borrowed.release, borrowed=True)
        self._memory.add(memory)
        return memory

    def host_buffer(self, nbytes: int) -> np.ndarray:
        """Page-locked host memory (uint8), kept until no array looks into it any more."""
        self._check()
        return host_buffer(self._context, nbytes)

    def lock_pages(self, array: np.ndarray) -> Callable[[], None]:
        """Page-lock memory that is there already; what is returned waits for the device and unlocks it.

        Raises:
            OutOfMemoryError: the host has no room that it may lock.
            DeviceError: the driver does not lock such memory.
        """
        self._check()
        return lock_pages(self._context, array)

    def create_stream(self) -> CudaStream:
        """Open a queue of its own."""
        self._check()
        stream = CudaStream(self._context)
        self._streams.add(stream)
        return stream

    def wrap_stream(self, handle: int) -> CudaStream:
        """Use a CUstream that somebody else made and destroys.

        Raises:
            BadParamError: it belongs to another context than this device's primary one.
        """
        self._check()
        stream = CudaStream(self._context, handle)
        self._streams.add(stream)
        return stream

    def copy_to_device(self, stream: Stream, destination: Address, source: np.ndarray) -> None:
        """Enqueue a copy of a contiguous host array; `source` must stay unchanged until the stream has passed it."""
        assert isinstance(stream, CudaStream)
        queue = self._queue_for_copy(stream, source)
        if source.nbytes:
            with self._context:
                driver.copy(queue, destination, source, source.nbytes)

    def gather_to_device(self, stream: Stream, destination: Address, sources: Sequence[np.ndarray]) -> None:
        """Enqueue copies of contiguous host arrays, one behind the other; the caller keeps these until the stream is past them."""
        assert isinstance(stream, CudaStream)
        for source in sources:
            _check_contiguous(source)
        queue = stream.handle
        with self._context:
            driver.gather(queue, destination, sources)

    def copy_to_host(self, stream: Stream, destination: np.ndarray, source: Address) -> None:
        """Enqueue a copy into a contiguous host array, which is valid once the stream has passed it."""
        assert isinstance(stream, CudaStream)
        queue = self._queue_for_copy(stream, destination)
        if destination.nbytes:
            with self._context:
                driver.copy(queue, destination, source, destination.nbytes)

    def copy(self, stream: Stream, destination: Address, source: Address, nbytes: int) -> None:
        """Enqueue a copy within this device."""
        assert isinstance(stream, CudaStream)
        if nbytes:
            with self._context:
                driver.copy(stream.handle, destination, source, nbytes)

    def _queue_for_copy(self, stream: CudaStream, array: np.ndarray) -> int:
        _check_contiguous(array)
        queue = stream.handle
        stream.keep(array)
        return queue

    def _check(self) -> None:
        self._owner.check()
        if self._closed:
            raise ClosedError(f"{self._info.name} was used after close()")

    def close(self) -> None:
        """Give everything back, what is held once nobody holds it; a second call does nothing."""
        self._owner.check()
        self._closed = True
        for graph in list(self._graphs):
            graph.close()
        for memory in list(self._memory):
            memory.close()
        for stream in list(self._streams):
            stream.release()

    def abandon(self) -> None:
        """Give graphs back, from whichever thread, for an owner that has ended."""
        for graph in list(self._graphs):
            graph.abandon()


def _check_contiguous(array: np.ndarray) -> None:
    if not array.flags.c_contiguous:
        raise BadParamError(f"a host array of strides {array.strides} bytes is not contiguous; copy it first")
