"""The CUDA driver through PyCUDA and cuda-bindings, typed: the one module that imports them, and the one where `Any` is allowed.

PyCUDA owns devices, contexts, memory and streams. It hides the handles of modules and functions, takes kernel parameters only as
one packed buffer, and knows neither graphs, nor other libraries' streams, nor stream-ordered memory: these go through
cuda-bindings. A resource is one or the other's, never both's, and every launch, copy and event takes the same way on streams of
ours and of others.

Nothing here pushes a context or maps errors by itself; that is what `runtime.context.Context` is for. Both packages are imported
when a function here is first called, so that `import dnncore` needs neither them nor a driver.

Source of names and numbers: CUDA Driver API, 13.0.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dnncore.cuda.tensor_map import TENSOR_MAP_BYTES, BoxMap, TensorMap
from dnncore.dtypes import DType
from dnncore.errors import BackendUnavailableError, DeviceError, DeviceFaultError, OutOfMemoryError

__all__ = [
    "FORKED",
    "STREAM_LEGACY",
    "STREAM_PER_THREAD",
    "CudaCallError",
    "DriverAllocation",
    "DriverContext",
    "DriverFunction",
    "DriverStream",
    "ExternalStream",
    "Launcher",
    "Parameters",
    "allocate",
    "allocate_host",
    "allocate_ordered",
    "allow_shared_bytes",
    "attribute",
    "bindings",
    "call",
    "compute_capability",
    "context_getter",
    "copy",
    "create_event",
    "create_stream",
    "current_context",
    "destroy_event",
    "device_count",
    "driver_error",
    "driver_error_types",
    "elapsed_ms",
    "encode_tensor_map",
    "event_has_passed",
    "free_ordered",
    "load_function",
    "load_module",
    "memory_bytes",
    "memset",
    "model",
    "pointer_device",
    "record_event",
    "retain_context",
    "stream_context",
    "synchronize_context",
    "synchronize_event",
    "synchronize_stream",
    "total_memory_bytes",
    "wait_for_event",
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


class DriverFunction(Protocol):
    """A CUfunction: a kernel of a loaded module."""


class CudaCallError(Exception):
    """A call that the driver refused. `Context` turns it into one of ours, as it does with PyCUDA's.

    Attributes:
        out_of_memory: Whether there was no room.
        of_context: Whether the reason may be that no context is current, or another one than that of what the call names.
    """

    def __init__(self, call: str, status: Any) -> None:
        super().__init__(f"{call} failed: {getattr(status, 'name', status)}")
        name = getattr(status, "name", "")
        self.out_of_memory = name == "CUDA_ERROR_OUT_OF_MEMORY"
        self.of_context = name in ("CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE")


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
    try:
        driver.init()
    except driver.Error as error:
        raise BackendUnavailableError(
            f"no NVIDIA driver or no GPU that it can use: {error}; see what nvidia-smi says and look at CUDA_VISIBLE_DEVICES, "
            'or use device "cpu"'
        ) from error
    os.register_at_fork(after_in_child=_mark_forked)
    return driver


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


def load_module(image: bytes) -> Any:
    """Load a cubin into the current context, where it stays as long as the process."""
    return call("cuModuleLoadData", image)


def load_function(module: Any, name: str) -> DriverFunction:
    """Look up an entry of a module."""
    function: DriverFunction = call("cuModuleGetFunction", module, name.encode())
    return function


def allow_shared_bytes(function: DriverFunction, nbytes: int) -> None:
    """Let a function be launched with this much dynamic shared memory."""
    name = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call("cuFuncSetAttribute", function, name, nbytes)


_MAP_TYPES = {
    DType.FLOAT16: "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    DType.BFLOAT16: "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
    DType.INT8: "CU_TENSOR_MAP_DATA_TYPE_UINT8",  # copies do not know signs
    DType.FLOAT32: "CU_TENSOR_MAP_DATA_TYPE_FLOAT32",
}
_ROUNDING_MAP_TYPE = "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32"
_MAP_SWIZZLES = {
    0: "CU_TENSOR_MAP_SWIZZLE_NONE",
    64: "CU_TENSOR_MAP_SWIZZLE_64B",
    128: "CU_TENSOR_MAP_SWIZZLE_128B",
}
"""By the bytes of a window's rows, whose chunks are exchanged."""


def encode_tensor_map(tensor: TensorMap, address: int) -> bytes:
    """The CUtensorMap of a tensor at an address, swizzled as it says and with zeros around it."""
    names = bindings()
    kind = getattr(names.CUtensorMapDataType, _ROUNDING_MAP_TYPE if tensor.rounds else _MAP_TYPES[tensor.dtype])
    sizes, strides = (list(map(names.cuuint64_t, numbers)) for numbers in (tensor.sizes, tensor.strides_bytes))
    modes = (
        names.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(names.CUtensorMapSwizzle, _MAP_SWIZZLES[tensor.swizzle_bytes]),
        names.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        names.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    common = (kind, len(sizes), address, sizes, strides)
    if isinstance(tensor, BoxMap):
        box, steps = list(map(names.cuuint32_t, tensor.box)), [names.cuuint32_t(1)] * len(sizes)
        made = call("cuTensorMapEncodeTiled", *common, box, steps, *modes)
    else:
        corners = list(tensor.lower), list(tensor.upper)
        steps = list(map(names.cuuint32_t, (1, *tensor.steps, 1)))
        made = call("cuTensorMapEncodeIm2col", *common, *corners, tensor.channels, tensor.pixels, steps, *modes)
    return ctypes.string_at(int(made.getPtr()), TENSOR_MAP_BYTES)


class Parameters:
    """A parameter block that stays where it is, and the array of one pointer to it that a launch takes. Owned by one thread.

    Attributes:
        block: The bytes, to write into.
        pointers: Address of the array.
    """

    __slots__ = ("_keep", "block", "pointers")

    def __init__(self, params: bytes) -> None:
        self.block = bytearray(params)
        held = (ctypes.c_char * max(len(params), 1)).from_buffer(self.block or bytearray(1))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(held))
        self._keep = held, pointers
        self.pointers = ctypes.addressof(pointers)


class Launcher:
    """A kernel, its configuration and its parameter block, ready to be enqueued as often as wanted. Owned by one thread.

    The driver copies the block during the call, so the next launch may have other parameters at once. `call` is the driver's
    function itself, not a method around it: what enqueues kernels calls it in front of work that may take less time than another
    frame of Python.

    Attributes:
        block: The one parameter struct, bit by bit, to write into before a launch.
        call: Enqueues it: call(*arguments(stream)), without the GIL; gives (status,).
        success: The status that is none but success.
    """

    __slots__ = ("_early", "_launch", "_parameters", "block", "call", "success")

    def __init__(
        self,
        function: DriverFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        params: bytes,
        shared_bytes: int,
        starts_early: bool = False,
    ) -> None:
        driver = bindings()
        self._parameters = Parameters(params)
        self._launch = function, (*grid, *block, shared_bytes)
        self._early = starts_early
        self.block = self._parameters.block
        self.call: Callable[..., tuple[Any]] = driver.cuLaunchKernelEx if starts_early else driver.cuLaunchKernel
        self.success: Any = driver.CUresult.CUDA_SUCCESS

    def arguments(self, stream: int) -> tuple[Any, ...]:
        """Those of a launch on a CUstream: to be kept, since making them takes as long as the call does with them."""
        driver, (function, shape) = bindings(), self._launch
        if not self._early:
            return (function, *shape, driver.CUstream(stream), self._parameters.pointers, 0)
        config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX, config.gridDimY, config.gridDimZ = shape[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = shape[3:6]
        config.sharedMemBytes, config.hStream = shape[6], driver.CUstream(stream)
        config.attrs, config.numAttrs = [attribute], 1
        return (config, function, self._parameters.pointers, 0)


def create_event(*, timed: bool) -> int:
    """Make an event; `destroy_event` ends it."""
    flags = bindings().CUevent_flags
    return int(call("cuEventCreate", (flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING).value))


def record_event(event: int, stream: int) -> None:
    """Enqueue the event."""
    call("cuEventRecord", event, stream)


def wait_for_event(stream: int, event: int) -> None:
    """Let a stream, of whatever device, wait for an event."""
    call("cuStreamWaitEvent", stream, event, 0)


def event_has_passed(event: int) -> bool:
    """Whether everything before the event has run."""
    driver = bindings()
    (status,) = driver.cuEventQuery(event)
    if status not in (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_NOT_READY):
        raise CudaCallError("cuEventQuery", status)
    return bool(status == driver.CUresult.CUDA_SUCCESS)


def synchronize_event(event: int) -> None:
    """Wait for the event."""
    call("cuEventSynchronize", event)


def elapsed_ms(start: int, end: int) -> float:
    """Milliseconds from one event to another, both of which have passed."""
    return float(call("cuEventElapsedTime", start, end))


def destroy_event(event: int) -> None:
    """Give an event back, from any thread; the driver keeps what is still needed of it.

    Nobody could do anything about a refusal, which a lost context or a forked process gives, so its status stays unread.
    """
    bindings().cuEventDestroy(event)


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
