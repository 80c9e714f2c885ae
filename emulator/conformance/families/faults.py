"""Errors that stay: each in a process of its own, for the context is lost afterwards."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.checks import Family
from emulator.conformance.families import im2col, tensor
from emulator.conformance.families.driver import words
from emulator.conformance.sources import Library, cuda_library, ptx_library
from emulator.conformance.tensors import DECLARATIONS, THREADS, Im2col, Tiled, load_kernel, store_kernel, where

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.bench import Bench
    from emulator.conformance.cuda import Argument
    from emulator.conformance.values import Array

ILLEGAL_ADDRESS, ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS, LAUNCH_FAILED = 700, 715, 716, 719

F16 = Tiled("f16", (40, 20), (16, 8), ())
IMAGES = Im2col("f16", (16, 10, 3), (-1,), (-1,), 8, 12, (), ())
# Kernel, tensor and place of tensor copies that an H200 refuses, though the ISA allows them.
REFUSED: dict[str, tuple[str, Tiled | Im2col, tuple[int, ...]]] = {
    # The innermost coordinate is not a multiple of 16 bytes.
    "load 2d f16 at 1": ("load_2d", F16, (1, 0)),
    "load 2d f16 at 4": ("load_2d", F16, (4, 0)),
    "load 2d f16 at 36": ("load_2d", F16, (36, 2)),
    "load 2d f16 at -3": ("load_2d", F16, (-3, 0)),
    "load 2d f32 at 1": ("load_2d", Tiled("f32", (20, 9), (12, 4), ()), (1, 0)),
    "load 1d u8 at 100": ("load_1d", Tiled("u8", (300,), (64,), ()), (100,)),
    "load 1d f64 at 1": ("load_1d", Tiled("f64", (100,), (16,), ()), (1,)),
    "load im2col at channel 4": ("load_im2col", IMAGES, (4, 0, 0)),
    "store 2d f16 at 4": ("store", F16, (4, 0)),
    # What is written begins before the tensor.
    "store 2d f16 at -8": ("store", F16, (-8, 0)),
    "store 2d f16 at row -3": ("store", F16, (0, -3)),
    "reduce 2d u32 at -4": ("reduce", Tiled("u32", (16, 9), (8, 4), ()), (-4, 0)),
    # Bits of signed 64-bit integers.
    "reduce and 2d s64": ("reduce_and", Tiled("s64", (16, 9), (8, 4), ()), (4, 1)),
    # The bounding box does.
    "store im2col at 0": ("store_im2col", IMAGES, (0, 0, 0)),
    "store im2col at -1": ("store_im2col", IMAGES, (0, -1, 0)),
}


def _codes(bench: Bench, address: int) -> Array:
    """The codes of the wait, of a second wait, and of an allocation and a copy afterwards."""
    driver = bench.driver
    return words(
        driver.code("cuCtxSynchronize"),
        driver.code("cuCtxSynchronize"),
        driver.code("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(64)),
        driver.code("cuMemcpyDtoH_v2", ctypes.create_string_buffer(4), ctypes.c_uint64(address), ctypes.c_size_t(4)),
    )


def _fault(bench: Bench, name: str, more: list[Argument]) -> Array:
    function = bench.kernel(cuda_library("driver"), name)
    out = bench.upload(np.zeros(16, np.uint32))
    bench.driver.launch(function, 1, 1, [out, *more])
    return _codes(bench, out.address)


def _tensor_library() -> Library:
    library = ptx_library(DECLARATIONS)
    for rank in (1, 2):
        library.add(f"load_{rank}d", load_kernel(f"load_{rank}d", rank))
    library.add("load_im2col", load_kernel("load_im2col", 3, 1))
    library.add("store", store_kernel("store", tensor.STORE.format(rank=2), 2))
    library.add("reduce", store_kernel("reduce", tensor.REDUCE.format(rank=2, operation="add"), 2))
    library.add("reduce_and", store_kernel("reduce_and", tensor.REDUCE.format(rank=2, operation="and"), 2))
    library.add("store_im2col", store_kernel("store_im2col", im2col.STORE.format(rank=3), 3))
    return library


def _refused(bench: Bench, library: Library, kernel: str, case: Tiled | Im2col, place: tuple[int, ...]) -> Array:
    memory = bench.upload(case.data(kernel))
    tensor_map = tensor.encode(bench, case, memory) if isinstance(case, Tiled) else im2col.encode(bench, case, memory)
    tile = bench.upload(np.zeros(case.box_bytes, np.uint8))
    arguments: list[Argument] = [tensor_map, bench.upload(where(place)), tile, case.box_bytes]
    bench.driver.launch(bench.kernel(library, kernel), 1, THREADS, arguments, shared=case.box_bytes + 1024)
    return _codes(bench, memory.address)


def family() -> Family:
    """The checks."""
    made = Family("faults")

    def add(name: str, covers: str, run: Callable[[Bench], Array], code: int) -> None:
        made.add(name, covers, run, "u32", lambda: words(code, code, code, code), alone=True)

    rows: list[tuple[str, int, list[Argument]]] = [
        ("illegal_address", ILLEGAL_ADDRESS, [ctypes.c_uint64(0x10)]),
        ("misaligned", MISALIGNED_ADDRESS, []),
        ("trapped", LAUNCH_FAILED, []),
        ("shared_overrun", ILLEGAL_ADDRESS, []),
        ("breakpoint", LAUNCH_FAILED, []),
    ]
    covers = {"trapped": "trap", "breakpoint": "brkpt"}
    for name, code, more in rows:
        run = partial(_fault, name=name, more=more)
        add(name, covers.get(name, "cuCtxSynchronize"), run, code)
    library = _tensor_library()
    for title, (kernel, case, place) in REFUSED.items():
        run = partial(_refused, library=library, kernel=kernel, case=case, place=place)
        add(title, "cuCtxSynchronize", run, ILLEGAL_INSTRUCTION)
    return made
