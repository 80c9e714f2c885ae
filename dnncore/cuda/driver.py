"""The CUDA driver through PyCUDA, typed: the only module that imports it, and the only one where `Any` is allowed.

Nothing here pushes a context or maps errors by itself; that is what `dnncore.cuda.context.Context` is for. PyCUDA is imported when
a function here is first called, so that `import dnncore` needs neither it nor a driver.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import numpy as np

from dnncore.errors import BackendUnavailableError, DeviceError, OutOfMemoryError

__all__ = [
    "DriverAllocation",
    "DriverContext",
    "DriverFunction",
    "DriverModule",
    "DriverStream",
    "allocate",
    "allocate_host",
    "allow_shared_bytes",
    "compute_capability",
    "copy_to_device",
    "copy_to_host",
    "create_stream",
    "device_count",
    "driver_error",
    "driver_error_type",
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


class DriverStream(Protocol):
    """What we use of pycuda.driver.Stream."""

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


class DriverFunction(Protocol):
    """An opaque pycuda.driver.Function."""


class DriverModule(Protocol):
    """An opaque pycuda.driver.Module; its functions die with it."""


@functools.cache
def _driver() -> Any:
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
    return driver


def driver_error_type() -> type[Exception]:
    """The class of every error that PyCUDA raises for the driver."""
    kind: type[Exception] = _driver().Error
    return kind


def driver_error(error: Exception) -> DeviceError:
    """Map a PyCUDA error that left the context intact to ours."""
    if isinstance(error, _driver().MemoryError):
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
    _driver().memcpy_htod_async(destination, source, stream)


def copy_to_host(destination: np.ndarray, source: int, stream: DriverStream) -> None:
    """Enqueue a copy into a contiguous array. The caller keeps the array alive."""
    _driver().memcpy_dtoh_async(destination, source, stream)


def load_module(image: bytes) -> DriverModule:
    """Load a cubin into the current context."""
    module: DriverModule = _driver().module_from_buffer(image)
    return module


def get_function(module: DriverModule, name: str) -> DriverFunction:
    """Look up an entry of a module."""
    loaded: Any = module
    function: DriverFunction = loaded.get_function(name)
    return function


def allow_shared_bytes(function: DriverFunction, nbytes: int) -> None:
    """Let a function be launched with this much dynamic shared memory."""
    loaded: Any = function
    loaded.set_attribute(_driver().function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)


def launch(
    function: DriverFunction,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    params: bytes,
    shared_bytes: int,
    stream: DriverStream,
) -> None:
    """Enqueue a kernel whose parameters are `params`, bit by bit.

    PyCUDA's public calls build the buffer argument by argument and set the deprecated block shape first: 2 to 5 us a launch. The
    method under them, which they all call, takes 0.3 us (PyCUDA 2026.1, no GPU).
    """
    loaded: Any = function
    loaded._launch_kernel(grid, block, params, shared_bytes, stream)
