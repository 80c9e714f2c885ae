"""Modules, their functions and what a launch of one takes, as the driver has them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from dnncore.cuda.runtime.driver import CudaCallError, bindings, call
from dnncore.errors import CompilationError

__all__ = ["DriverFunction", "Launcher", "Parameters", "allow_shared_bytes", "load_function", "load_module", "load_ptx"]

_LOG_BYTES = 16 << 10
"""Room for what the driver's compiler says of PTX that it refuses."""

_OF_COMPILER = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "INVALID_PTX", "UNSUPPORTED_PTX_VERSION", "JIT_COMPILER_NOT_FOUND", "JIT_COMPILATION_DISABLED", "NO_BINARY_FOR_GPU",
    )
)  # fmt: skip
"""What the driver refuses PTX with."""


class DriverFunction(Protocol):
    """A CUfunction: a kernel of a loaded module."""


def load_module(image: bytes) -> Any:
    """Load a cubin into the current context, where it stays as long as the process."""
    return call("cuModuleLoadData", image)


def load_ptx(text: bytes, name: str) -> Any:
    """Have the driver compile PTX, and load it into the current context, where it stays as long as the process.

    The driver keeps what it made for other processes ($CUDA_CACHE_PATH, default ~/.nv/ComputeCache).

    Args:
        name: Of the kernel, for messages.

    Raises:
        CompilationError: it cannot; the message ends with what its compiler printed.
    """
    option, log = bindings().CUjit_option, bytearray(_LOG_BYTES)
    options = {option.CU_JIT_ERROR_LOG_BUFFER: log, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(log)}
    try:
        return call("cuModuleLoadDataEx", text + b"\0", len(options), list(options), list(options.values()))
    except CudaCallError as error:
        if error.status not in _OF_COMPILER:
            raise
        said = log.split(b"\0", 1)[0].decode(errors="replace").strip()
        raise CompilationError(
            f"the driver does not compile the PTX of {name}: {error}; update the driver if it is older than the PTX, or build "
            f"machine code for this GPU: `python -m dnncore.cuda.build --arch sm_XY --out DIR` and DNNCORE_CUBIN_DIR=DIR\n{said}"
        ) from error


def load_function(module: Any, name: str) -> DriverFunction:
    """Look up an entry of a module."""
    function: DriverFunction = call("cuModuleGetFunction", module, name.encode())
    return function


def allow_shared_bytes(function: DriverFunction, nbytes: int) -> None:
    """Let a function be launched with this much dynamic shared memory."""
    name = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call("cuFuncSetAttribute", function, name, nbytes)


class Parameters:
    """A parameter block that stays where it is, and the array of one pointer to it that a launch takes. Owned by one thread.

    Attributes:
        block: The bytes, to write into.
        pointers: Address of the array.
    """

    __slots__ = ("_keep", "block", "pointers")

    def __init__(self, params: bytes) -> None:
        self.block = bytearray(params)
        first = ctypes.c_char.from_buffer(self.block or bytearray(1))  # an array of so many would be a type of its own
        pointer = ctypes.c_void_p(ctypes.addressof(first))
        self._keep = first, pointer
        self.pointers = ctypes.addressof(pointer)


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
