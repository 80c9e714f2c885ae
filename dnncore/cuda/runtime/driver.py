"""The CUDA driver through PyCUDA and cuda-bindings, typed: the one module that imports them. Devices, contexts, memory, streams.

What a launch takes, events, tensor maps and graphs have modules of their own beside it, which come here for `call` and `bindings`;
only in these is `Any` allowed.

PyCUDA owns devices, contexts, memory and streams. It hides the handles of modules and functions, takes kernel parameters only as
one packed buffer, and knows neither graphs, nor other libraries' streams, nor stream-ordered memory: these go through
cuda-bindings. So does page-locking memory that is there already: PyCUDA 2026.1 ends the process when it is to do so for an array
of NumPy 2. A resource is one or the other's, never both's, and every launch, copy and event takes the same way on streams of
ours and of others.

Nothing here pushes a context or maps errors by itself; that is what `runtime.context.Context` is for. Both packages are imported
when a function here is first called, so that `import dnncore` needs neither them nor a driver.

Source of names and numbers: CUDA Driver API, 13.0.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from dnncore.errors import BackendUnavailableError, DeviceError, DeviceFaultError, OutOfMemoryError

__all__ = [
    "FORKED",
    "STREAM_LEGACY",
    "STREAM_PER_THREAD",
    "CudaCallError",
    "DriverAllocation",
    "DriverContext",
    "DriverStream",
    "ExternalStream",
    "allocate",
    "allocate_host",
    "allocate_ordered",
    "attribute",
    "bindings",
    "call",
    "compute_capability",
    "context_getter",
    "copy",
    "create_stream",
    "current_context",
    "device_count",
    "driver_error",
    "driver_error_types",
    "free_ordered",
    "gather",
    "memory_bytes",
    "memset",
    "model",
    "pointer_device",
    "register_host",
    "retain_context",
    "stream_context",
    "synchronize_context",
    "synchronize_stream",
    "total_memory_bytes",
    "unregister_host",
]

STREAM_LEGACY, STREAM_PER_THREAD = 1, 2
"""CU_STREAM_LEGACY and CU_STREAM_PER_THREAD: the two default streams; every other stream's handle is an address."""

_STREAM_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: no implicit waiting for the default stream, which nothing here uses."""


class DriverContext(Protocol):
    """What we use of pycuda.driver.Context; one object per device, because PyCUDA ties every resource to the object."""

    @property
    def handle(self) -> int:
        """The CUcontext."""

    def push(self) -> None:
        """Make it the calling thread's current context."""

    def pop(self) -> None:
        """Undo the calling thread's last push."""

    def synchronize(self) -> None:
        """Wait for everything enqueued on the current context."""


FORKED = (
    "the process was forked after it had used CUDA, which no driver allows; start it by spawn or forkserver instead"
)
"""What every use in such a child says."""

_forked = False  # written once, by the child itself


class DriverStream(Protocol):
    """What we use of pycuda.driver.Stream, which destroys the stream with its last reference; `ExternalStream` is another."""

    @property
    def handle(self) -> int:
        """The CUstream."""


class DriverAllocation(Protocol):
    """What we use of pycuda.driver.DeviceAllocation and PagelockedHostAllocation."""

    def __int__(self) -> int: ...

    def free(self) -> None:
        """Give the memory back; its context must be current."""


class CudaCallError(Exception):
    """A call that the driver refused. `Context` turns it into one of ours, as it does with PyCUDA's.

    Attributes:
        status: The driver's name for why: "CUDA_ERROR_INVALID_VALUE".
        out_of_memory: Whether there was no room.
        of_context: Whether the reason may be that no context is current, or another one than that of what the call names.
    """

    def __init__(self, call: str, status: Any) -> None:
        super().__init__(f"{call} failed: {getattr(status, 'name', status)}")
        self.status = str(getattr(status, "name", ""))
        self.out_of_memory = self.status == "CUDA_ERROR_OUT_OF_MEMORY"
        self.of_context = self.status in ("CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE")


@functools.cache
def _driver() -> Any:
    if _forked:
        raise DeviceFaultError(FORKED)
    try:
        import pycuda.driver as driver
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(
            f"PyCUDA is not installed ({error}); install it with: pip install 'dnncore[cuda]'"
        ) from error
    except ImportError as error:
        raise BackendUnavailableError(
            f'no NVIDIA driver on this machine: PyCUDA could not be loaded: {error}; install the driver, or use device "cpu"'
        ) from error
    _begin()
    try:
        driver.init()
    except driver.Error as error:
        raise BackendUnavailableError(
            f"no NVIDIA driver or no GPU that it can use: {error}; see what nvidia-smi says and look at CUDA_VISIBLE_DEVICES, "
            'or use device "cpu"'
        ) from error
    os.register_at_fork(after_in_child=_mark_forked)
    return driver


def _begin() -> None:
    """Initialise the driver, which takes half a second for each GPU, while other threads go on: PyCUDA would keep the interpreter's
    lock. What is wrong with the driver, or with cuda-bindings, others say.
    """
    with contextlib.suppress(ImportError):
        from cuda.bindings import driver

        driver.cuInit(0)


def _mark_forked() -> None:
    global _forked
    _forked = True
    _driver.cache_clear()
    bindings.cache_clear()


@functools.cache
def bindings() -> Any:
    """cuda-bindings, which finds the driver that PyCUDA has loaded."""
    _driver()
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendUnavailableError(
            f"cuda-bindings is not installed ({error}); install it with: pip install 'dnncore[cuda]'"
        ) from error
    return driver


def call(name: str, *arguments: object) -> Any:
    """Call a function of the driver; what it returns beside the status: nothing, a value or a tuple.

    Raises:
        CudaCallError: the driver refused.
    """
    status, *results = getattr(bindings(), name)(*arguments)
    if status:
        raise CudaCallError(name, status)
    return results[0] if len(results) == 1 else tuple(results)


def driver_error_types() -> tuple[type[Exception], ...]:
    """The classes of every error that is raised for the driver."""
    return _driver().Error, CudaCallError


def driver_error(error: Exception) -> DeviceError:
    """Map an error of the driver that left the context intact to ours."""
    out_of_memory = error.out_of_memory if isinstance(error, CudaCallError) else None
    if out_of_memory or isinstance(error, _driver().MemoryError):
        return OutOfMemoryError(str(error))
    return DeviceError(str(error))


def device_count() -> int:
    """Number of devices that the driver shows.

    Raises:
        BackendUnavailableError: PyCUDA or the driver is missing; the message says which and the remedy.
    """
    return int(_driver().Device.count())


def compute_capability(index: int) -> tuple[int, int]:
    """Compute capability (major, minor) of a device."""
    major, minor = _driver().Device(index).compute_capability()
    return int(major), int(minor)


def model(index: int) -> str:
    """What the hardware calls itself."""
    return str(_driver().Device(index).name())


def total_memory_bytes(index: int) -> int:
    """Memory of a device."""
    return int(_driver().Device(index).total_memory())


def attribute(index: int, name: str) -> int:
    """An attribute of a device by PyCUDA's name: "MULTIPROCESSOR_COUNT"."""
    return int(_driver().Device(index).get_attribute(getattr(_driver().device_attribute, name)))


def retain_context(index: int) -> DriverContext:
    """Retain a device's primary context, without pushing it."""
    context: DriverContext = _driver().Device(index).retain_primary_context()
    return context


def memory_bytes() -> tuple[int, int]:
    """(free, total) memory of the current context's device."""
    free, total = _driver().mem_get_info()
    return int(free), int(total)


def allocate(nbytes: int) -> DriverAllocation:
    """Allocate device memory in the current context."""
    allocation: DriverAllocation = _driver().mem_alloc(nbytes)
    return allocation


def allocate_host(nbytes: int) -> tuple[np.ndarray, DriverAllocation]:
    """Allocate page-locked host memory in the current context: an array (uint8) and what frees it."""
    array: np.ndarray = _driver().pagelocked_empty(nbytes, np.uint8)
    allocation: Any = array.base
    return array, allocation


def register_host(array: np.ndarray) -> None:
    """Page-lock the memory of a contiguous host array, where it is, for the current context."""
    call("cuMemHostRegister", array.ctypes.data, array.nbytes, 0)


def unregister_host(array: np.ndarray) -> None:
    """Undo that; nothing copies from there or to there any more."""
    call("cuMemHostUnregister", array.ctypes.data)


def create_stream() -> DriverStream:
    """Create a stream in the current context."""
    stream: DriverStream = _driver().Stream(_STREAM_NON_BLOCKING)
    return stream


class ExternalStream:
    """A stream that somebody else made and will destroy; stands where a PyCUDA stream does. Thread-safe."""

    def __init__(self, handle: int) -> None:
        self.handle = handle


def synchronize_stream(stream: int) -> None:
    """Wait for everything enqueued on a stream, without the GIL."""
    call("cuStreamSynchronize", stream)


def synchronize_context() -> None:
    """Wait for everything enqueued on the current context, without the GIL."""
    call("cuCtxSynchronize")


def stream_context(stream: int) -> int:
    """The CUcontext that a stream belongs to."""
    return int(call("cuStreamGetCtx", stream))


def current_context() -> int:
    """The calling thread's CUcontext, 0 for none."""
    return int(context_getter()()[1] or 0)


def context_getter() -> Callable[[], tuple[Any, Any]]:
    """The driver's own function for that, for those who ask before every launch: gives (status, CUcontext)."""
    getter: Callable[[], tuple[Any, Any]] = bindings().cuCtxGetCurrent
    return getter


def copy(stream: int, destination: int | np.ndarray, source: int | np.ndarray, nbytes: int) -> None:
    """Enqueue a copy between device addresses and contiguous host arrays, at least one of them an address.

    The caller keeps arrays alive until the stream has passed the copy.
    """
    kinds = ["H" if isinstance(place, np.ndarray) else "D" for place in (source, destination)]
    to, of = (p.ctypes.data if isinstance(p, np.ndarray) else p for p in (destination, source))
    call("cuMemcpyDtoDAsync" if kinds == ["D", "D"] else f"cuMemcpy{kinds[0]}to{kinds[1]}Async", to, of, nbytes, stream)


def gather(stream: int, destination: int, sources: Sequence[np.ndarray]) -> None:
    """Enqueue copies of contiguous host arrays to a device address, one behind the other; the caller keeps them, as with `copy`."""
    enqueue = bindings().cuMemcpyHtoDAsync  # asked for once: there may be a hundred
    for source in sources:
        nbytes = source.nbytes
        if nbytes:
            (status,) = enqueue(destination, source.ctypes.data, nbytes, stream)
            if status:
                raise CudaCallError("cuMemcpyHtoDAsync", status)
            destination += nbytes


def memset(stream: int, address: int, value: int, nbytes: int) -> None:
    """Enqueue the filling of memory with one byte."""
    call("cuMemsetD8Async", address, value, nbytes, stream)


def allocate_ordered(index: int, nbytes: int, stream: int) -> int:
    """Allocate memory of the device's pool that work enqueued on a stream from now on may use."""
    _keep_pool(index)
    return int(call("cuMemAllocAsync", nbytes, stream))


def free_ordered(address: int, stream: int) -> None:
    """Give memory of the pool back once the stream has passed what was enqueued so far."""
    call("cuMemFreeAsync", address, stream)


@functools.cache
def _keep_pool(index: int) -> None:
    """Let a device's pool keep what is given back to it: by default every synchronisation returns it to the driver."""
    driver = bindings()
    pool = call("cuDeviceGetDefaultMemPool", index)
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    call("cuMemPoolSetAttribute", pool, threshold, driver.cuuint64_t(2**64 - 1))


def pointer_device(address: int) -> int | None:
    """The device whose memory lies at an address; None for the host's memory and for none at all."""
    driver = bindings()
    names = driver.CUpointer_attribute
    try:
        kind = call("cuPointerGetAttribute", names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
        ordinal = call("cuPointerGetAttribute", names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
    except CudaCallError:
        return None
    return int(ordinal) if int(kind) == driver.CUmemorytype.CU_MEMORYTYPE_DEVICE.value else None
