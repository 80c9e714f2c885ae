"""What PyCUDA cannot do: streams that somebody else made, events that cross threads, and questions about foreign memory.

PyCUDA takes a stream only as an object of its own, which it can make but not wrap, and hides the CUfunction of what it loaded. So
these few calls go to libcuda itself, without the GIL. Whoever calls has the context current unless it says otherwise.

Source of names and numbers: CUDA Driver API, 13.0.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

__all__ = [
    "STREAM_LEGACY",
    "STREAM_PER_THREAD",
    "CudaCallError",
    "ExternalStream",
    "allow_shared_bytes",
    "copy",
    "create_event",
    "current_context",
    "destroy_event",
    "elapsed_ms",
    "event_has_passed",
    "launch",
    "load_function",
    "pointer_device",
    "record",
    "synchronize_event",
    "wait",
]

STREAM_LEGACY, STREAM_PER_THREAD = 1, 2
"""CU_STREAM_LEGACY and CU_STREAM_PER_THREAD: the two default streams; every other stream's handle is an address."""

_NOT_READY = 600
_OUT_OF_MEMORY = 2
_EVENT_DISABLE_TIMING = 2
_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_POINTER_MEMORY_TYPE, _POINTER_DEVICE_ORDINAL = 2, 9
_MEMORY_ON_DEVICE = 2  # CU_MEMORYTYPE_DEVICE

_POINTER, _UNSIGNED = ctypes.c_void_p, ctypes.c_uint
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuCtxGetCurrent": (_POINTER,),
    "cuEventCreate": (_POINTER, _UNSIGNED),
    "cuEventDestroy_v2": (_POINTER,),
    "cuEventElapsedTime": (_POINTER, _POINTER, _POINTER),
    "cuEventQuery": (_POINTER,),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventSynchronize": (_POINTER,),
    "cuFuncSetAttribute": (_POINTER, ctypes.c_int, ctypes.c_int),
    "cuGetErrorName": (ctypes.c_int, _POINTER),
    "cuLaunchKernel": (_POINTER, *(_UNSIGNED,) * 7, _POINTER, _POINTER, _POINTER),
    "cuMemcpyDtoDAsync_v2": (_POINTER, _POINTER, ctypes.c_size_t, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _POINTER, ctypes.c_size_t, _POINTER),
    "cuMemcpyHtoDAsync_v2": (_POINTER, _POINTER, ctypes.c_size_t, _POINTER),
    "cuModuleGetFunction": (_POINTER, _POINTER, ctypes.c_char_p),
    "cuModuleLoadData": (_POINTER, _POINTER),
    "cuPointerGetAttribute": (_POINTER, ctypes.c_int, _POINTER),
    "cuStreamGetCtx": (_POINTER, _POINTER),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamWaitEvent": (_POINTER, _POINTER, _UNSIGNED),
}


class CudaCallError(Exception):
    """A call that the driver refused. `Context` turns it into one of ours, as it does with PyCUDA's."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} failed: {_name_of(status)}")
        self.out_of_memory = status == _OUT_OF_MEMORY


@functools.cache
def _function(name: str) -> Callable[..., int]:
    function: ctypes._NamedFuncPointer = getattr(ctypes.CDLL("libcuda.so.1"), name)  # the one that PyCUDA has loaded
    function.argtypes, function.restype = _SIGNATURES[name], ctypes.c_int
    return function


def _name_of(status: int) -> str:
    text = ctypes.c_char_p()
    unknown = _function("cuGetErrorName")(status, ctypes.byref(text))
    return f"CUDA error {status}" if unknown or text.value is None else text.value.decode()


def _call(name: str, *arguments: object) -> None:
    status = _function(name)(*arguments)
    if status:
        raise CudaCallError(name, status)


def _handle(name: str, *arguments: object) -> int:
    """Call what writes a handle through its first parameter."""
    handle = ctypes.c_void_p()
    _call(name, ctypes.byref(handle), *arguments)
    return handle.value or 0


class ExternalStream:
    """A stream that somebody else made and will destroy; stands where a PyCUDA stream does. Thread-safe."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def synchronize(self) -> None:
        """Wait for everything enqueued on it."""
        _call("cuStreamSynchronize", self.handle)

    def context(self) -> int:
        """The CUcontext that it belongs to."""
        context = ctypes.c_void_p()
        _call("cuStreamGetCtx", self.handle, ctypes.byref(context))
        return context.value or 0


def current_context() -> int:
    """The calling thread's CUcontext."""
    return _handle("cuCtxGetCurrent")


def copy(stream: int, destination: int | np.ndarray, source: int | np.ndarray, nbytes: int) -> None:
    """Enqueue a copy between device addresses and contiguous host arrays, at least one of them an address."""
    name = (
        "cuMemcpyDtoHAsync_v2"
        if isinstance(destination, np.ndarray)
        else "cuMemcpyHtoDAsync_v2"
        if isinstance(source, np.ndarray)
        else "cuMemcpyDtoDAsync_v2"
    )
    places = (place.ctypes.data if isinstance(place, np.ndarray) else place for place in (destination, source))
    _call(name, *places, nbytes, stream)


def load_function(image: bytes, name: str) -> int:
    """Load a cubin once more into the current context, where it stays, and look up an entry."""
    module = _handle("cuModuleLoadData", image)
    return _handle("cuModuleGetFunction", module, name.encode())


def allow_shared_bytes(function: int, nbytes: int) -> None:
    """Let a function be launched with this much dynamic shared memory."""
    _call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_BYTES, nbytes)


def launch(
    function: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    params: bytes,
    shared_bytes: int,
    stream: int,
) -> None:
    """Enqueue a kernel whose one parameter is `params`, bit by bit."""
    pointers = (ctypes.c_char_p * 1)(params)
    _call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, pointers, None)


def create_event(*, timed: bool) -> int:
    """Make an event; `destroy_event` ends it."""
    return _handle("cuEventCreate", 0 if timed else _EVENT_DISABLE_TIMING)


def record(event: int, stream: int) -> None:
    """Enqueue the event."""
    _call("cuEventRecord", event, stream)


def wait(stream: int, event: int) -> None:
    """Let a stream, of whatever device, wait for an event."""
    _call("cuStreamWaitEvent", stream, event, 0)


def event_has_passed(event: int) -> bool:
    """Whether everything before the event has run."""
    status = _function("cuEventQuery")(event)
    if status not in (0, _NOT_READY):
        raise CudaCallError("cuEventQuery", status)
    return status == 0


def synchronize_event(event: int) -> None:
    """Wait for the event."""
    _call("cuEventSynchronize", event)


def elapsed_ms(start: int, end: int) -> float:
    """Milliseconds from one event to another, both of which have passed."""
    milliseconds = ctypes.c_float()
    _call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
    return milliseconds.value


def destroy_event(event: int) -> None:
    """Give an event back, from any thread; the driver keeps what is still needed of it.

    Nobody could do anything about a refusal, which a lost context or a forked process gives, so it is not looked at.
    """
    _function("cuEventDestroy_v2")(event)


def pointer_device(address: int) -> int | None:
    """The device whose memory lies at an address; None for the host's memory and for none at all."""
    kind, ordinal = ctypes.c_uint(), ctypes.c_int()
    try:
        _call("cuPointerGetAttribute", ctypes.byref(kind), _POINTER_MEMORY_TYPE, address)
        _call("cuPointerGetAttribute", ctypes.byref(ordinal), _POINTER_DEVICE_ORDINAL, address)
    except CudaCallError:
        return None
    return ordinal.value if kind.value == _MEMORY_ON_DEVICE else None
