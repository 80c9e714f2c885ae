"""Modules, functions, and what the driver checks of a launch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from emulator.tests.driver_api import Session, image, needs_driver, pointers, session

pytestmark = needs_driver

INVALID_VALUE, INVALID_HANDLE, NOT_FOUND, TOO_LARGE, NOT_SUPPORTED, CLUSTER_SIZE = 1, 400, 500, 720, 801, 912


class Attribute(ctypes.Structure):
    """CUlaunchAttribute; the value as 16 words."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


CLUSTER, COOPERATIVE, PROGRAMMATIC, PRIORITY, PREFERRED_CLUSTER, PROGRAMMATIC_EVENT = 4, 2, 6, 8, 11, 7


def launch_ex(
    s: Session, function: int, arguments: Sequence[Any], grid: tuple[int, int, int], **attributes: tuple[int, ...]
) -> int:
    """cuLaunchKernelEx with attributes by their numbers, as `a4=(2, 1, 1)`; a CUresult."""
    array = (Attribute * max(len(attributes), 1))()
    for slot, (name, words) in zip(array, attributes.items(), strict=False):
        slot.id = int(name[1:])
        for index, word in enumerate(words):
            slot.value[index] = word
    config = Config(grid, (32, 1, 1), 0, None, array, len(attributes))
    return s.cuda.code("cuLaunchKernelEx", ctypes.byref(config), function, pointers(arguments), None)


def shape(s: Session, name: str, blocks: int, **attributes: tuple[int, ...]) -> tuple[int, list[int]]:
    """Launch one of the `shape` kernels; a CUresult and what its first four blocks wrote."""
    out = s.upload(np.full(4 * max(blocks, 4), -1, np.int32))
    code = launch_ex(s, s.function(name), (ctypes.c_uint64(out),), (blocks, 1, 1), **attributes)
    return code, s.ints(out, 16)


def test_parameters_as_pointers_and_as_a_buffer() -> None:
    with session() as s:
        x = s.ones(8)
        assert s.scale(x, 3, 8) == 0
        assert s.floats(x, 8) == [3.0] * 8
        buffer = np.zeros(16, np.uint8)
        buffer[:8].view(np.uint64)[0] = x
        buffer[8:12].view(np.float32)[0] = 2
        buffer[12:].view(np.int32)[0] = 4

        def launch(size: int) -> int:
            bytes_ = ctypes.c_size_t(size)
            extra = (ctypes.c_void_p * 5)(1, buffer.ctypes.data, 2, ctypes.addressof(bytes_), 0)
            return s.cuda.code("cuLaunchKernel", s.function("scale"), 1, 1, 1, 32, 1, 1, 0, 0, None, extra)

        assert launch(16) == 0
        assert s.floats(x, 8) == [6.0] * 4 + [3.0] * 4
        assert launch(8) == INVALID_VALUE
        assert "takes 16 bytes of parameters" in s.cuda.last_error()


def test_parameters_are_aligned_as_in_the_constant_bank() -> None:
    with session() as s:
        out = s.upload(np.zeros(1, np.int32))
        assert s.launch(s.function("place"), (ctypes.c_uint64(out),)) == 0
        assert s.ints(out, 1) == [0x210 % 128]


def test_globals_are_initialised_and_relocated() -> None:
    with session() as s:
        out = s.upload(np.zeros(2, np.int32))
        counter, size = ctypes.c_size_t(), ctypes.c_size_t()
        s.cuda.cuModuleGetGlobal(ctypes.byref(counter), ctypes.byref(size), s.module, b"counter")
        assert size.value == 4
        s.cuda.cuMemcpyHtoD(counter.value, np.array([41], np.int32).ctypes.data, 4)
        assert s.launch(s.function("read_globals"), (ctypes.c_uint64(out),)) == 0
        assert s.ints(out, 2) == [41, 6]
        assert s.cuda.code("cuModuleGetGlobal", None, ctypes.byref(size), s.module, b"nothing") == NOT_FOUND


def test_modules_share_an_image_not_their_memory() -> None:
    with session() as s:
        images = s.cuda.counter("images")
        second = s.cuda.handle("cuModuleLoadData", image())
        assert s.cuda.counter("images") == images
        addresses = []
        for module in (s.module, second):
            address = ctypes.c_size_t()
            s.cuda.cuModuleGetGlobal(ctypes.byref(address), None, module, b"counter")
            addresses.append(address.value)
        assert addresses[0] != addresses[1]
        function = s.cuda.handle("cuModuleGetFunction", second, b"scale")
        s.cuda.cuModuleUnload(second)
        assert s.launch(function, (ctypes.c_uint64(0), ctypes.c_float(1), ctypes.c_int(0))) == INVALID_HANDLE


def test_functions_describe_themselves() -> None:
    with session() as s:
        cuda, function = s.cuda, s.function("scale")
        assert cuda.value("cuFuncGetName", ctypes.c_char_p, function) == b"scale"
        assert cuda.handle("cuFuncGetModule", function) == s.module
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        cuda.cuFuncGetParamInfo(function, 2, ctypes.byref(offset), ctypes.byref(size))
        assert (offset.value, size.value) == (12, 4)
        assert cuda.code("cuFuncGetParamInfo", function, 3, ctypes.byref(offset), None) == INVALID_VALUE
        assert cuda.value("cuFuncGetAttribute", ctypes.c_int, 0, s.function("shape_64")) == 64
        assert cuda.value("cuFuncGetAttribute", ctypes.c_int, 1, s.function("shape_static")) == 4096
        found = cuda.code("cuModuleGetFunction", ctypes.byref(ctypes.c_size_t()), s.module, b"nothing")
        assert found == NOT_FOUND


def test_libraries_follow_the_context() -> None:
    with session() as s:
        cuda = s.cuda
        library = cuda.handle("cuLibraryLoadData", image(), None, None, 0, None, None, 0)
        kernel = cuda.handle("cuLibraryGetKernel", library, b"scale")
        x = s.ones(1)
        arguments = (ctypes.c_uint64(x), ctypes.c_float(2), ctypes.c_int(1))
        assert s.launch(kernel, arguments) == 0  # a CUkernel in the place of a CUfunction
        assert s.launch(cuda.handle("cuKernelGetFunction", kernel), arguments) == 0
        assert s.floats(x, 1) == [4.0]
        assert cuda.handle("cuLibraryGetModule", library) != s.module
        cuda.cuLibraryUnload(library)
        assert s.launch(kernel, arguments) == INVALID_HANDLE


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((0, 1, 1), (32, 1, 1)), ((1, 65536, 1), (32, 1, 1)), ((1, 1, 65536), (1, 1, 1)), ((1, 1, 1), (1025, 1, 1)),
        ((1, 1, 1), (32, 33, 1)), ((1, 1, 1), (1, 1, 65)), ((1, 1, 1), (0, 1, 1)),
    ],
)  # fmt: skip
def test_limits_of_grids_and_blocks(grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    with session() as s:
        x = s.ones(1)
        arguments = (ctypes.c_uint64(x), ctypes.c_float(2), ctypes.c_int(0))
        assert s.launch(s.function("scale"), arguments, grid=grid, block=block) == INVALID_VALUE
        assert s.launch(s.function("scale"), arguments, block=(8, 8, 16)) == 0


def test_limits_of_shared_memory() -> None:
    with session() as s:
        function, out = s.function("shape_static"), s.upload(np.zeros(4, np.int32))
        arguments = (ctypes.c_uint64(out),)
        assert s.launch(function, arguments, shared=49152 - 4096) == 0
        assert s.ints(out, 4)[2] == 49152 - 4096
        assert s.launch(function, arguments, shared=49152 - 4095) == INVALID_VALUE
        most = 232448 - 4096
        assert s.cuda.code("cuFuncSetAttribute", function, 8, most + 1) == INVALID_VALUE
        s.cuda.cuFuncSetAttribute(function, 8, most)
        assert s.launch(function, arguments, shared=most) == 0
        assert s.ints(out, 4)[2] == most
        assert s.launch(function, arguments, shared=most + 1) == INVALID_VALUE


def test_static_shared_memory_is_rounded_up() -> None:
    with session() as s:
        function, out = s.function("shape_2000"), s.upload(np.zeros(4, np.int32))
        assert s.cuda.value("cuFuncGetAttribute", ctypes.c_int, 1, function) == 2048
        assert s.cuda.value("cuFuncGetAttribute", ctypes.c_int, 8, function) == 49152 - 2048
        assert s.launch(function, (ctypes.c_uint64(out),), shared=49152 - 2047) == INVALID_VALUE
        assert s.cuda.code("cuFuncSetAttribute", function, 8, 232448 - 2047) == INVALID_VALUE
        assert s.cuda.code("cuFuncSetAttribute", function, 8, 232448 - 2048) == 0


def test_max_threads() -> None:
    with session() as s:
        arguments = (ctypes.c_uint64(s.ones(4)),)
        assert s.launch(s.function("shape_64"), arguments, block=(64, 1, 1)) == 0
        assert s.launch(s.function("shape_64"), arguments, block=(65, 1, 1)) == INVALID_VALUE


def test_clusters() -> None:
    with session() as s:
        code, seen = shape(s, "shape", 4, a4=(2, 1, 1))
        assert code == 0
        assert seen[::4] == [0, 1, 0, 1]
        assert seen[1::4] == [2, 2, 2, 2]
        assert shape(s, "shape", 5, a4=(2, 1, 1))[0] == CLUSTER_SIZE
        assert shape(s, "shape", 16, a4=(16, 1, 1))[0] == CLUSTER_SIZE
        s.cuda.cuFuncSetAttribute(s.function("shape"), 14, 1)
        assert shape(s, "shape", 16, a4=(16, 1, 1))[0] == 0
        assert shape(s, "shape", 32, a4=(32, 1, 1))[0] == CLUSTER_SIZE
        code, seen = shape(s, "shape_pair", 2)
        assert (code, seen[:8:4], seen[1:8:4]) == (0, [0, 1], [2, 2])
        assert shape(s, "shape_pair", 3)[0] == CLUSTER_SIZE
        assert shape(s, "shape_pair", 4, a4=(4, 1, 1))[0] == CLUSTER_SIZE
        assert shape(s, "shape", 4, a4=(2, 1, 1), a11=(4, 1, 1))[0] == 0
        assert shape(s, "shape", 4, a4=(2, 1, 1), a11=(3, 1, 1))[0] == INVALID_VALUE


def test_other_launch_attributes() -> None:
    with session() as s:
        assert shape(s, "shape", 1, a6=(1,), a8=(0,))[0] == 0
        assert shape(s, "shape", 1, a2=(1,))[0] == 0
        assert shape(s, "shape", 132 * 32 + 1, a2=(1,))[0] == TOO_LARGE
        assert shape(s, "shape", 2, a2=(1,))[0] == NOT_SUPPORTED
        assert shape(s, "shape", 1, a7=(0,))[0] == NOT_SUPPORTED
        assert "launch attribute 7 is not emulated" in s.cuda.last_error()


def test_occupancy() -> None:
    with session() as s:
        blocks = ctypes.c_int()

        def occupancy(name: str, threads: int, shared: int) -> int:
            call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            s.cuda.code(call, ctypes.byref(blocks), s.function(name), threads, shared)
            return blocks.value

        def available(name: str, count: int) -> int:
            call = "cuOccupancyAvailableDynamicSMemPerBlock"
            return int(s.cuda.value(call, ctypes.c_size_t, s.function(name), count, 256))

        assert occupancy("scale", 1024, 0) == 2
        assert occupancy("scale", 32, 0) == 32
        assert occupancy("scale", 128, 100_000) == 2
        assert occupancy("shape_64", 128, 0) == 0
        assert available("scale", 2) == 233472 // 2
        assert available("scale", 1) == 232448
        assert available("shape_2000", 2) == 233472 // 2 - 2048
        grid, block = ctypes.c_int(), ctypes.c_int()
        s.cuda.cuOccupancyMaxPotentialBlockSize(
            ctypes.byref(grid), ctypes.byref(block), s.function("scale"), None, 0, 0
        )
        assert (grid.value, block.value) == (264, 1024)
