"""Tensor copies in im2col mode: PTX ISA 5.5.4 and 9.7.9.27, with maps of cuTensorMapEncodeIm2col."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.checks import Family
from emulator.conformance.cuda import CudaError, encode_im2col
from emulator.conformance.sources import Library, ptx_library
from emulator.conformance.tensors import DATA_TYPES, DECLARATIONS, THREADS, Im2col, load_kernel, store_kernel, where
from emulator.conformance.values import WIDTHS, WORDS

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
    from emulator.conformance.cuda import Buffer, TensorMap
    from emulator.conformance.values import Array

STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group"
NINE = tuple((x, y) for y in range(3) for x in range(3))
CASES = {
    "3d f16": Im2col(
        "f16", (16, 10, 3), (-1,), (-1,), 8, 12, ((0, -1, 0), (8, 4, 1), (0, -1, 2)), ((0,), (1,), (2,))
    ),
    "3d u8 no padding": Im2col("u8", (32, 12, 2), (0,), (-2,), 16, 10, ((16, 0, 0), (0, 7, 1)), ((0,), (1,), (2,))),
    "4d 3x3": Im2col(
        "f16", (16, 6, 5, 3), (-1, -1), (-1, -1), 16, 24, ((0, -1, -1, 0), (0, 2, 1, 0), (0, 0, 3, 1), (0, -1, 2, 2)), NINE
    ),
    "4d 3x3 no padding": Im2col(
        "f32", (8, 7, 6, 2), (0, 0), (-2, -2), 4, 16, ((0, 0, 0, 0), (4, 3, 2, 0), (0, 1, 3, 1)), NINE
    ),
    "4d 5x3 dilated": Im2col(
        "f16", (8, 9, 8, 2), (-4, -2), (-4, -2), 8, 20, ((0, -4, -2, 0), (0, 1, 4, 0)), ((0, 0), (8, 0), (4, 2), (0, 4))
    ),
    "4d strides 2": Im2col(
        "f16", (8, 9, 7, 3), (-1, -1), (-1, -1), 8, 20, ((0, -1, -1, 0), (0, 3, 1, 1)), NINE, steps=(1, 2, 2, 1)
    ),
    "4d strides 3 and 2": Im2col(
        "f32", (8, 11, 8, 2), (-2, -1), (0, 0), 8, 18, ((0, -2, -1, 0), (0, 1, 3, 1)), ((0, 0), (2, 1)), steps=(1, 3, 2, 1)
    ),
    "4d 128B": Im2col("f16", (64, 6, 5, 2), (-1, -1), (-1, -1), 64, 16, ((0, -1, -1, 0), (0, 2, 1, 0)), NINE, swizzle=3),
    "4d 64B": Im2col("bf16", (40, 6, 5, 2), (-1, -1), (-1, -1), 32, 16, ((0, -1, -1, 0), (32, 2, 1, 0)), NINE, swizzle=2),
    "4d 32B channels beyond": Im2col(
        "f16", (24, 6, 5, 2), (-1, -1), (-1, -1), 16, 16, ((16, -1, -1, 0), (16, 2, 1, 1)), ((1, 1), (2, 0)), swizzle=1
    ),
    "4d NaN": Im2col("f16", (8, 6, 5, 2), (-1, -1), (-1, -1), 8, 16, ((0, -1, -1, 0),), NINE, nan=True),
    "4d upper padding": Im2col("f16", (8, 5, 4, 2), (-2, -2), (1, 1), 8, 32, ((0, -2, -2, 0), (0, 3, 2, 1)), ((0, 0), (1, 1))),
    "5d 3x3x3": Im2col(
        "f16", (8, 5, 4, 4, 2), (-1, -1, -1), (-1, -1, -1), 8, 24, ((0, -1, -1, -1, 0), (0, 2, 1, 1, 1)),
        ((0, 0, 0), (1, 1, 1), (2, 2, 2), (0, 2, 1)),
    ),
    "5d strides": Im2col(
        "f32", (4, 6, 5, 5, 2), (0, -1, 0), (-1, -1, -1), 4, 20, ((0, 0, -1, 0, 0), (0, 2, 1, 2, 1)),
        ((0, 0, 0), (1, 1, 1)), steps=(1, 2, 1, 2, 1),
    ),
}  # fmt: skip
# An H200 stores only through maps whose lower corner is not negative: the family `faults` has others.
STORES = {
    "3d f16": Im2col("f16", (16, 10, 3), (0,), (0,), 8, 12, ((0, 0, 0), (8, 4, 1), (0, 9, 2)), ()),
    "3d u8 upper corner": Im2col("u8", (32, 12, 2), (0,), (-2,), 16, 10, ((16, 0, 0), (0, 7, 1)), ()),
    "4d f16": Im2col("f16", (24, 6, 5, 3), (0, 0), (-2, -1), 16, 24, ((0, 0, 0, 0), (16, 2, 1, 1)), ()),
    "5d f32": Im2col("f32", (8, 5, 4, 4, 2), (0, 0, 0), (-2, 0, -1), 4, 24, ((0, 0, 0, 0, 0), (4, 2, 1, 1, 1)), ()),
}  # fmt: skip


def encode(bench: Bench, case: Im2col, memory: Buffer) -> TensorMap:
    """The tensor map of a case.

    Raises:
        CudaError: The driver refuses it.
    """
    tensor_map, code = encode_im2col(
        bench.driver, DATA_TYPES[case.kind], memory.address, case.sizes, case.strides, case.lower, case.upper,
        case.channels, case.pixels, case.steps, case.swizzle, int(case.nan),
    )  # fmt: skip
    if code:
        raise CudaError("cuTensorMapEncodeIm2col", code, bench.driver.error_name(code))
    return tensor_map


def _load(made: Family, library: Library, title: str, case: Im2col) -> None:
    rank = len(case.sizes)
    name = f"load {title}"

    def run(bench: Bench) -> Array:
        tensor_map = encode(bench, case, bench.upload(case.data(name)))
        tiles = []
        for place in case.places:
            for offsets in case.offsets:
                out = bench.output(case.box_bytes, np.uint8)
                arguments = [tensor_map, bench.upload(where(place, offsets)), out, case.box_bytes]
                bench.launch(library, f"im2col_{rank}d", 1, THREADS, arguments, shared=case.box_bytes + 1024)
                tiles.append(bench.read(out, WORDS[WIDTHS[case.kind]]))
        return np.concatenate(tiles)

    def expected() -> Array:
        memory = case.data(name)
        return np.concatenate(
            [case.loaded(memory, place, offsets) for place in case.places for offsets in case.offsets]
        )

    covers = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
    made.add(name, f"{covers} cuTensorMapEncodeIm2col", run, case.kind, expected)


def _store(made: Family, library: Library, title: str, case: Im2col) -> None:
    rank = len(case.sizes)
    name = f"store {title}"
    none = (0,) * (rank - 2)

    def tile(place: int) -> Array:
        return np.resize(np.roll(case.data(name + "tile"), 13 * place), case.channels * case.pixels)

    def run(bench: Bench) -> Array:
        memory = bench.upload(case.data(name))
        tensor_map = encode(bench, case, memory)
        for i, place in enumerate(case.places):
            arguments = [tensor_map, bench.upload(where(place)), bench.upload(tile(i)), case.box_bytes]
            bench.launch(library, f"im2col_store_{rank}d", 1, THREADS, arguments, shared=case.box_bytes + 1024)
        return bench.read(memory, WORDS[WIDTHS[case.kind]])

    def expected() -> Array:
        memory = case.data(name).copy()
        for i, place in enumerate(case.places):
            for slot, index in case.elements(place, none):
                if index is not None:
                    memory[index] = tile(i)[slot]
        return memory

    made.add(name, STORE.format(rank=rank), run, case.kind, expected)


def family() -> Family:
    """The checks."""
    made = Family("im2col")
    library = ptx_library(DECLARATIONS)
    for rank in (3, 4, 5):
        library.add(f"im2col_{rank}d", load_kernel(f"im2col_{rank}d", rank, rank - 2))
    for title, case in CASES.items():
        _load(made, library, title, case)
    for rank in (3, 4, 5):
        library.add(f"im2col_store_{rank}d", store_kernel(f"im2col_store_{rank}d", STORE.format(rank=rank), rank))
    for title, case in STORES.items():
        _store(made, library, title, case)
    return made
