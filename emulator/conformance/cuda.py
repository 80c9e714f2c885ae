"""The part of the CUDA driver API that the checks use, through ctypes: the real libcuda or, with $DNN_EMU_LIB, the emulated one."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.conformance.cuda_types import (
    LAUNCH_CLUSTER_DIMENSION,
    LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION,
    LaunchAttribute,
    LaunchConfig,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from emulator.conformance.values import Array

Dim3 = tuple[int, int, int]
Handle = ctypes.c_void_p


class CudaError(Exception):
    """A driver function that did not return CUDA_SUCCESS."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function} returned {name} ({code})")
        self.code = code


def dim3(size: int | Sequence[int]) -> Dim3:
    """One to three sizes as three."""
    sizes = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class Buffer:
    """Memory of the device."""

    address: int
    size: int


class TensorMap:
    """A CUtensorMap: 128 bytes at an address that 64 divides."""

    def __init__(self) -> None:
        self._memory = (ctypes.c_ubyte * 192)()
        self.address = (ctypes.addressof(self._memory) + 63) & ~63


Argument = Buffer | TensorMap | int | float | Any


class Arguments:
    """Kernel parameters as an array of pointers; keeps what they point at."""

    def __init__(self, values: Sequence[Argument]) -> None:
        self._kept: list[Any] = []
        pointers = [self._pointer(value) for value in values]
        self.pointers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)

    def _pointer(self, value: Argument) -> int:
        if isinstance(value, TensorMap):
            self._kept.append(value)
            return value.address
        if isinstance(value, Buffer):
            value = ctypes.c_uint64(value.address)
        elif isinstance(value, int):
            value = ctypes.c_int32(value)
        elif isinstance(value, float):
            value = ctypes.c_float(value)
        self._kept.append(value)
        return ctypes.addressof(value)


class Driver:
    """One device through its primary context."""

    def __init__(self, ordinal: int = 0) -> None:
        path = os.environ.get("DNN_EMU_LIB") or "libcuda.so.1"
        self.emulated = bool(os.environ.get("DNN_EMU_LIB"))
        self._library = ctypes.CDLL(path)
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), ordinal)
        self.context = Handle()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)

    # ---- calls

    def code(self, function: str, *arguments: Any) -> int:
        """Calls a driver function and returns its CUresult."""
        entry = getattr(self._library, function)
        entry.restype = ctypes.c_int
        return int(entry(*(_promoted(argument) for argument in arguments)))

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a driver function.

        Raises:
            CudaError: It failed.
        """
        code = self.code(function, *arguments)
        if code:
            raise CudaError(function, code, self.error_name(code))

    def error_name(self, code: int) -> str:
        """The name of a CUresult."""
        text = ctypes.c_char_p()
        found = self.code("cuGetErrorName", code, ctypes.byref(text)) == 0
        return text.value.decode() if found and text.value else "unknown error"

    # ---- device

    def device_name(self) -> str:
        """As the driver says it."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, 256, self.device)
        return text.value.decode()

    def version(self) -> int:
        """Of the CUDA that the driver speaks: 13000 is 13.0."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return number.value

    def device_count(self) -> int:
        """Number of visible devices."""
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def attribute(self, which: int) -> int:
        """A CUdevice_attribute."""
        number = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(number), which, self.device)
        return number.value

    def synchronize(self) -> None:
        """Waits for the context."""
        self.call("cuCtxSynchronize")

    # ---- memory

    def allocate(self, size: int) -> Buffer:
        """Device memory."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return Buffer(address.value, size)

    def free(self, buffer: Buffer) -> None:
        """Gives memory back."""
        self.call("cuMemFree_v2", ctypes.c_uint64(buffer.address))

    def write(self, buffer: Buffer, values: Array) -> None:
        """Host to device."""
        data = np.ascontiguousarray(values)
        assert data.nbytes <= buffer.size
        self.call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(buffer.address), Handle(data.ctypes.data), ctypes.c_size_t(data.nbytes)
        )

    def read(self, buffer: Buffer, dtype: Any = np.uint8) -> Array:
        """Device to host."""
        data = np.empty(buffer.size // np.dtype(dtype).itemsize, dtype)
        self.call(
            "cuMemcpyDtoH_v2", Handle(data.ctypes.data), ctypes.c_uint64(buffer.address), ctypes.c_size_t(data.nbytes)
        )
        return data

    def fill(self, buffer: Buffer, byte: int) -> None:
        """Sets every byte, and waits for it: the memset itself may run beside the host."""
        self.call("cuMemsetD8_v2", ctypes.c_uint64(buffer.address), ctypes.c_ubyte(byte), ctypes.c_size_t(buffer.size))
        self.synchronize()

    # ---- modules and launches

    def load(self, image: bytes) -> Handle:
        """A module from what nvcc made."""
        module = Handle()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module: Handle, name: str) -> Handle:
        """A kernel of a module."""
        function = Handle()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def set_attribute(self, function: Handle, which: int, value: int) -> None:
        """A CUfunction_attribute."""
        self.call("cuFuncSetAttribute", function, which, value)

    def launch(
        self,
        function: Handle,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Argument],
        *,
        shared: int = 0,
        stream: Handle | None = None,
        cluster: int | Sequence[int] | None = None,
        programmatic: bool = False,
    ) -> None:
        """Launches a kernel: through cuLaunchKernelEx where an attribute asks for it."""
        parameters = Arguments(arguments)
        if cluster is None and not programmatic:
            dims = (*dim3(grid), *dim3(block))
            self.call("cuLaunchKernel", function, *dims, shared, stream, parameters.pointers, None)
            return
        config, _attributes = launch_config(grid, block, shared, stream, cluster, programmatic)
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, parameters.pointers, None)

    # ---- streams and events

    def stream(self) -> Handle:
        """A stream that does not wait for the null stream."""
        stream = Handle()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def event(self) -> Handle:
        """An event with timing."""
        event = Handle()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event


def _promoted(argument: Any) -> Any:
    """Python integers stand for the API's 32-bit ones: ctypes passes them so by itself, unsigned ones need help."""
    if isinstance(argument, int):
        return ctypes.c_uint(argument & 0xFFFFFFFF)
    return argument


def launch_config(
    grid: int | Sequence[int],
    block: int | Sequence[int],
    shared: int,
    stream: Handle | None,
    cluster: int | Sequence[int] | None,
    programmatic: bool,
) -> tuple[LaunchConfig, Any]:
    """A CUlaunchConfig and the attributes it points at, which the caller keeps until the call is over."""
    attributes = (LaunchAttribute * 2)()
    count = 0
    if cluster is not None:
        attributes[count].id = LAUNCH_CLUSTER_DIMENSION
        attributes[count].value[0:3] = dim3(cluster)
        count += 1
    if programmatic:
        attributes[count].id = LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION
        attributes[count].value[0] = 1
        count += 1
    config = LaunchConfig(grid=dim3(grid), block=dim3(block), shared=shared, stream=stream, num_attributes=count)
    config.attributes = ctypes.cast(attributes, ctypes.POINTER(LaunchAttribute))
    return config, attributes


def encode_tiled(
    driver: Driver,
    data_type: int,
    address: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    interleave: int = 0,
    swizzle: int = 0,
    promotion: int = 0,
    fill: int = 0,
) -> tuple[TensorMap, int]:
    """cuTensorMapEncodeTiled: the map and the CUresult. Sizes are innermost first, strides in bytes."""
    rank = len(sizes)
    tensor_map = TensorMap()
    code = driver.code(
        "cuTensorMapEncodeTiled",
        Handle(tensor_map.address),
        data_type,
        rank,
        Handle(address),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * max(1, rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*(element_strides or [1] * rank)),
        interleave,
        swizzle,
        promotion,
        fill,
    )
    return tensor_map, code


def encode_im2col(
    driver: Driver,
    data_type: int,
    address: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    lower: Sequence[int],
    upper: Sequence[int],
    channels: int,
    pixels: int,
    element_strides: Sequence[int] | None = None,
    swizzle: int = 0,
    fill: int = 0,
) -> tuple[TensorMap, int]:
    """cuTensorMapEncodeIm2col: the map and the CUresult."""
    rank = len(sizes)
    tensor_map = TensorMap()
    code = driver.code(
        "cuTensorMapEncodeIm2col",
        Handle(tensor_map.address),
        data_type,
        rank,
        Handle(address),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_int * (rank - 2))(*lower),
        (ctypes.c_int * (rank - 2))(*upper),
        channels,
        pixels,
        (ctypes.c_uint32 * rank)(*(element_strides or [1] * rank)),
        0,
        swizzle,
        0,
        fill,
    )
    return tensor_map, code
