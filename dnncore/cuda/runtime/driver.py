"""The CUDA driver through PyCUDA, typed: the only module that imports it, and the only one where `Any` is allowed.

Nothing here pushes a context or maps errors by itself; that is what `dnncore.cuda.context.Context` is for. PyCUDA is imported when
a function here is first called, so that `import dnncore` needs neither it nor a driver.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dnncore.cuda import libcuda
from dnncore.errors import BackendUnavailableError, DeviceError, DeviceFaultError, OutOfMemoryError

__all__ = [
    "FORKED",
    "DriverAllocation",
    "DriverContext",
    "DriverFunction",
    "DriverModule",
    "DriverStream",
    "allocate",
    "allocate_host",
    "allow_shared_bytes",
    "compute_capability",
    "copy_on_device",
    "copy_to_device",
    "copy_to_host",
    "create_stream",
    "device_count",
    "driver_error",
    "driver_error_types",
    "get_function",
    "launch",
    "load_module",
    "memory_bytes",
    "model",
    "retain_context",
    "total_memory_bytes",
]

_STREAM_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: no implicit waiting for the default stream, which nothing here uses."""


class DriverContext(Protocol):
    """What we use of pycuda.driver.Context; one object a device, because PyCUDA ties every resource to the object."""

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
    """What we use of pycuda.driver.Stream; `libcuda.ExternalStream` is another."""

    @property
    def handle(self) -> int:
        """The CUstream."""

    def synchronize(self) -> None:
        """Wait for everything enqueued on it, without holding the GIL."""


class DriverAllocation(Protocol):
    """What we use of pycuda.driver.DeviceAllocation and PagelockedHostAllocation."""

    def __int__(self) -> int: ...

    def free(self) -> None:
        """Give the memory back; its context must be current."""


@dataclass(slots=True)
class DriverModule:
    """A loaded cubin; its functions die with it."""

    image: bytes
    loaded: Any


@dataclass(slots=True)
class DriverFunction:
    """An entry of a module, by PyCUDA and, once it was launched on a stream that PyCUDA cannot wrap, by libcuda."""

    image: bytes
    name: str
    loaded: Any
    shared_bytes: int = 0
    handle: int = 0


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


def driver_error_types() -> tuple[type[Exception], ...]:
    """The classes of every error that is raised for the driver."""
    return _driver().Error, libcuda.CudaCallError


def driver_error(error: Exception) -> DeviceError:
    """Map an error of the driver that left the context intact to ours."""
    out_of_memory = error.out_of_memory if isinstance(error, libcuda.CudaCallError) else None
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


def copy_to_device(destination: int, source: np.ndarray, stream: DriverStream) -> None:
    """Enqueue a copy of a contiguous array. PyCUDA drops its reference at once: the caller keeps the array alive."""
    if isinstance(stream, libcuda.ExternalStream):
        libcuda.copy(stream.handle, destination, source, source.nbytes)
    else:
        _driver().memcpy_htod_async(destination, source, stream)


def copy_to_host(destination: np.ndarray, source: int, stream: DriverStream) -> None:
    """Enqueue a copy into a contiguous array. The caller keeps the array alive."""
    if isinstance(stream, libcuda.ExternalStream):
        libcuda.copy(stream.handle, destination, source, destination.nbytes)
    else:
        _driver().memcpy_dtoh_async(destination, source, stream)


def copy_on_device(destination: int, source: int, nbytes: int, stream: DriverStream) -> None:
    """Enqueue a copy from one address of the device to another."""
    libcuda.copy(stream.handle, destination, source, nbytes)


def load_module(image: bytes) -> DriverModule:
    """Load a cubin into the current context."""
    return DriverModule(image, _driver().module_from_buffer(image))


def get_function(module: DriverModule, name: str) -> DriverFunction:
    """Look up an entry of a module."""
    return DriverFunction(module.image, name, module.loaded.get_function(name))


def allow_shared_bytes(function: DriverFunction, nbytes: int) -> None:
    """Let a function be launched with this much dynamic shared memory."""
    function.loaded.set_attribute(_driver().function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)
    function.shared_bytes = nbytes
    if function.handle:
        libcuda.allow_shared_bytes(function.handle, nbytes)


def launch(
    function: DriverFunction,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    params: bytes,
    shared_bytes: int,
    stream: DriverStream,
) -> None:
    """Enqueue a kernel whose one parameter is `params`, bit by bit.

    PyCUDA's public calls build the buffer argument by argument and set the deprecated block shape first: 2 to 5 us a launch. The
    method under them, which they all call, takes 0.3 us (PyCUDA 2026.1, no GPU).
    """
    if isinstance(stream, libcuda.ExternalStream):
        libcuda.launch(_handle(function), grid, block, params, shared_bytes, stream.handle)
    else:
        function.loaded._launch_kernel(grid, block, params, shared_bytes, stream)


def _handle(function: DriverFunction) -> int:
    """A CUfunction, which PyCUDA hides: the cubin is loaded a second time. Two threads at once load it twice, to no harm."""
    if not function.handle:
        handle = libcuda.load_function(function.image, function.name)
        if function.shared_bytes:
            libcuda.allow_shared_bytes(handle, function.shared_bytes)
        function.handle = handle
    return function.handle
