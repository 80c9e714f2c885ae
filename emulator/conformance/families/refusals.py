"""Calls that the driver refuses: their codes, and that none of them is an error that stays."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.checks import Family
from emulator.conformance.cuda import Arguments, Handle, encode_im2col, encode_tiled, launch_config
from emulator.conformance.families.driver import SOURCE, pointer, size, words
from emulator.conformance.sources import cuda_library

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array


def _illegal_launches(bench: Bench) -> Array:
    """Grids, blocks and clusters that no device takes."""
    driver, library = bench.driver, cuda_library("driver")
    data = bench.upload(np.zeros(2048, np.uint32))
    parameters = Arguments([data, 1])
    found = []

    def launch(name: str, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int = 0) -> None:
        function = bench.kernel(library, name)
        found.append(driver.code("cuLaunchKernel", function, *grid, *block, shared, None, parameters.pointers, None))

    launch("add", (0, 1, 1), (32, 1, 1))
    launch("add", (1, 65536, 1), (32, 1, 1))
    launch("add", (1, 1, 65536), (32, 1, 1))
    launch("add", (1, 1, 1), (0, 1, 1))
    launch("add", (1, 1, 1), (1025, 1, 1))
    launch("add", (1, 1, 1), (1, 1, 65))
    launch("add", (1, 1, 1), (32, 33, 1))
    launch("fixed", (1, 1, 1), (512, 1, 1))
    launch("add", (1, 1, 1), (32, 1, 1), shared=1 << 20)
    for grid, cluster in ((3, 2), (16, 16), (9, 9), (32, 32)):
        config, _kept = launch_config(grid, 32, 0, None, cluster, False)
        function = bench.kernel(library, "add")
        found.append(driver.code("cuLaunchKernelEx", ctypes.byref(config), function, parameters.pointers, None))
    found.append(driver.code("cuCtxSynchronize"))
    launch("add", (1, 1, 1), (1, 1, 64))
    found += [driver.code("cuCtxSynchronize"), int(bench.read(data).sum())]
    return words(*found)


def _illegal_memory(bench: Bench) -> Array:
    driver = bench.driver
    address = ctypes.c_uint64()
    host = np.zeros(64, np.uint32)
    data = bench.upload(SOURCE[:64])
    found = [
        driver.code("cuMemAlloc_v2", ctypes.byref(address), size(0)),
        driver.code("cuMemAlloc_v2", ctypes.byref(address), size(1 << 50)),
        driver.code("cuMemFree_v2", pointer(data, 4)),
        driver.code("cuMemFree_v2", ctypes.c_uint64(0)),
        driver.code("cuMemcpyDtoH_v2", Handle(host.ctypes.data), ctypes.c_uint64(16), size(4)),
        driver.code("cuMemcpyHtoD_v2", pointer(data), Handle(host.ctypes.data), size(0)),
        driver.code("cuMemsetD32_v2", pointer(data, 2), 5, size(1)),
        driver.code("cuMemsetD16_v2", pointer(data, 1), 5, size(1)),
        driver.code("cuDeviceGet", ctypes.byref(ctypes.c_int()), 1000),
        driver.code("cuFuncSetAttribute", bench.kernel(cuda_library("driver"), "add"), 999, 1),
        driver.code("cuCtxSynchronize"),
    ]
    return words(*found)


def _illegal_tensor_maps(bench: Bench) -> Array:
    driver = bench.driver
    address = bench.upload(np.zeros(1 << 16, np.uint8)).address

    def tiled(
        kind: int, at: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], **more: object
    ) -> int:
        return encode_tiled(driver, kind, at, sizes, strides, box, **more)[1]  # type: ignore[arg-type]

    def im2col(lower: tuple[int, ...], upper: tuple[int, ...], channels: int, pixels: int, **more: object) -> int:
        sizes, strides = (16, 8, 8, 2), (32, 256, 2048)
        return encode_im2col(driver, 6, address, sizes, strides, lower, upper, channels, pixels, **more)[1]  # type: ignore[arg-type]

    found = [
        tiled(6, address, (64, 32), (128,), (64, 8)),
        tiled(6, address + 8, (64, 32), (128,), (64, 8)),  # the address: 16 bytes
        tiled(6, address, (64, 32), (120,), (60, 8)),  # the stride: 16 bytes
        tiled(6, address, (64, 32), (128,), (4, 8)),  # the inner box: 16 bytes
        tiled(6, address, (64, 32), (128,), (64, 257)),  # the box: 256
        tiled(6, address, (64, 32), (128,), (64, 0)),
        tiled(6, address, (64, 0), (128,), (64, 8)),
        tiled(6, address, (64, 32), (128,), (64, 8), element_strides=(1, 9)),  # steps: 8
        tiled(6, address, (64, 32), (128,), (64, 8), element_strides=(1, 0)),
        tiled(6, address, (64, 32), (128,), (64, 8), swizzle=2),  # the inner box: the swizzle's span
        tiled(6, address, (64, 32), (128,), (64, 8), swizzle=3),
        tiled(2, address, (64, 32), (256,), (32, 8), fill=1),  # NaN for integers
        tiled(99, address, (64, 32), (128,), (64, 8)),
        tiled(6, address, (64, 32), (64,), (64, 8)),  # a stride below the row
        tiled(6, address, (64, 32), (1 << 40,), (64, 8)),  # the stride: 2^40
        tiled(6, address, (64, 32), (128,), (64, 8), interleave=1),
        im2col((-1, -1), (-1, -1), 16, 64),
        im2col((-129, -1), (-1, -1), 16, 64),
        im2col((-1, -1), (128, -1), 16, 64),
        im2col((-1, -1), (-1, -1), 257, 64),
        im2col((-1, -1), (-1, -1), 16, 1025),
        im2col((-1, -1), (-1, -1), 0, 64),
        im2col((-1, -1), (-1, -1), 16, 64, element_strides=(1, 9, 1, 1)),
    ]
    return words(*found)


def _misaligned_tensor_maps(bench: Bench) -> Array:
    """Where in memory a tensor map may be made."""
    driver, address = bench.driver, bench.upload(np.zeros(1 << 16, np.uint8)).address
    memory = (ctypes.c_ubyte * 512)()
    aligned, found = (ctypes.addressof(memory) + 127) & ~127, []
    sizes, strides, ones = (
        (ctypes.c_uint64 * 4)(16, 8, 8, 2),
        (ctypes.c_uint64 * 3)(32, 256, 2048),
        (ctypes.c_uint32 * 4)(1, 1, 1, 1),
    )
    box, corner = (ctypes.c_uint32 * 4)(16, 2, 2, 1), (ctypes.c_int * 2)(-1, -1)
    for offset in (0, 8, 16, 32, 48, 64, 96):
        start = (Handle(aligned + offset), 6, 4, Handle(address), sizes, strides)
        found += [
            driver.code("cuTensorMapEncodeTiled", *start, box, ones, 0, 0, 0, 0),
            driver.code("cuTensorMapEncodeIm2col", *start, corner, corner, 16, 64, ones, 0, 0, 0, 0),
        ]
    return words(*found)


def family() -> Family:
    """The checks. Only a GPU says which code is right."""
    made = Family("refusals")
    made.add("illegal launches", "cuLaunchKernel cuLaunchKernelEx", _illegal_launches)
    made.add(
        "illegal memory calls",
        "cuMemAlloc cuMemFree cuMemcpyDtoH cuMemcpyHtoD cuMemsetD32 cuMemsetD16",
        _illegal_memory,
    )
    made.add("illegal tensor maps", "cuTensorMapEncodeTiled cuTensorMapEncodeIm2col", _illegal_tensor_maps)
    made.add("misaligned tensor maps", "cuTensorMapEncodeTiled cuTensorMapEncodeIm2col", _misaligned_tensor_maps)
    return made
