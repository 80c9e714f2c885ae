"""Tensor copies of tiles: cp.async.bulk.tensor and its kin, PTX ISA 9.7.9.27, with maps of cuTensorMapEncodeTiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import exact, values
from emulator.conformance.checks import Family
from emulator.conformance.cuda import CudaError, encode_tiled
from emulator.conformance.families.floating import add as add_numbers
from emulator.conformance.families.floating import lift
from emulator.conformance.families.integer import number
from emulator.conformance.scalar import opcodes
from emulator.conformance.sources import Library, ptx_library
from emulator.conformance.tensors import (
    DATA_TYPES,
    DECLARATIONS,
    THREADS,
    Tiled,
    load_kernel,
    multicast_kernel,
    store_kernel,
    where,
)
from emulator.conformance.values import WIDTHS, WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.bench import Bench
    from emulator.conformance.cuda import Buffer, TensorMap
    from emulator.conformance.values import Array

STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
REDUCE = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{operation}.tile.bulk_group"

# An H200 takes only inner coordinates that are multiples of 16 bytes: the family `faults` has others.
LOADS = {
    "1d u8": Tiled("u8", (300,), (64,), ((0,), (112,), (272,), (-16,), (400,))),
    "1d f64": Tiled("f64", (100,), (16,), ((0,), (90,), (-4,))),
    "2d f16": Tiled("f16", (40, 20), (16, 8), ((0, 0), (8, 5), (32, 16), (-8, -3), (40, 2), (48, 30))),
    "2d f32 padded": Tiled("f32", (20, 9), (12, 4), ((0, 0), (4, 3), (12, 7), (-4, -2)), padding=16),
    "2d f16 32B": Tiled("f16", (40, 20), (16, 16), ((0, 0), (8, 5), (32, 10)), swizzle=1),
    "2d f16 64B": Tiled("f16", (40, 20), (32, 16), ((0, 0), (8, 5), (32, 10)), swizzle=2),
    "2d f16 128B": Tiled("f16", (80, 20), (64, 16), ((0, 0), (8, 5), (64, 10)), swizzle=3),
    "2d f32 128B": Tiled("f32", (40, 20), (32, 16), ((0, 0), (12, -5)), swizzle=3),
    "2d u8 64B": Tiled("u8", (160, 20), (64, 16), ((0, 0), (112, 5)), swizzle=2),
    "2d bf16 NaN": Tiled("bf16", (40, 20), (16, 8), ((32, 16), (-8, -3)), nan=True),
    "2d f32 NaN": Tiled("f32", (20, 9), (12, 4), ((12, 7), (-4, -2)), nan=True),
    "2d f16 NaN 32B": Tiled("f16", (40, 20), (16, 16), ((32, 10), (-8, -3)), swizzle=1, nan=True),
    "2d u16 strides": Tiled("u16", (40, 20), (16, 9), ((0, 0), (8, 5), (32, 16), (-8, -4)), steps=(1, 2)),
    "2d s32": Tiled("s32", (20, 9), (8, 4), ((4, 1), (16, 6))),
    "2d s64": Tiled("s64", (20, 9), (8, 4), ((2, 1), (-2, -1))),
    "2d u64": Tiled("u64", (20, 9), (8, 4), ((18, 8),)),
    "3d f16": Tiled("f16", (16, 7, 5), (16, 4, 3), ((0, 0, 0), (8, 5, 3), (-8, -1, -1), (0, 2, 5))),
    "3d f16 128B": Tiled("f16", (64, 7, 5), (64, 4, 3), ((0, 0, 0), (0, 5, 3), (0, -1, -1)), swizzle=3),
    "3d u32 strides": Tiled("u32", (8, 11, 9), (4, 6, 7), ((0, 0, 0), (4, 3, 5), (0, -1, -2)), steps=(1, 2, 3)),
    "4d f16": Tiled("f16", (16, 5, 4, 3), (8, 3, 2, 2), ((0, 0, 0, 0), (8, 3, 3, 2), (0, -1, -1, -1))),
    "4d bf16 64B": Tiled("bf16", (32, 5, 4, 3), (32, 3, 2, 2), ((0, 0, 0, 0), (0, 3, 3, 2)), swizzle=2),
    "5d f32": Tiled("f32", (8, 4, 3, 3, 3), (4, 2, 2, 2, 2), ((0, 0, 0, 0, 0), (4, 3, 2, 2, 2), (0, -1, -1, -1, -1))),
    "5d u8": Tiled("u8", (32, 4, 3, 2, 3), (16, 4, 2, 2, 2), ((16, 0, 1, 1, 1),)),
}  # fmt: skip


def encode(bench: Bench, case: Tiled, memory: Buffer) -> TensorMap:
    """The tensor map of a case.

    Raises:
        CudaError: The driver refuses it.
    """
    tensor_map, code = encode_tiled(
        bench.driver, DATA_TYPES[case.kind], memory.address, case.sizes, case.strides, case.box, case.steps,
        swizzle=case.swizzle, fill=int(case.nan),
    )  # fmt: skip
    if code:
        raise CudaError("cuTensorMapEncodeTiled", code, bench.driver.error_name(code))
    return tensor_map


def _loads(made: Family, library: Library) -> None:
    for rank in range(1, 6):
        library.add(f"load_{rank}d", load_kernel(f"load_{rank}d", rank))
    for title, case in LOADS.items():
        rank = len(case.sizes)
        name = f"load {title}"

        def run(bench: Bench, case: Tiled = case, name: str = name, rank: int = rank) -> Array:
            tensor_map = encode(bench, case, bench.upload(case.data(name)))
            tiles = []
            for place in case.places:
                out = bench.output(case.box_bytes, np.uint8)
                arguments = [tensor_map, bench.upload(where(place)), out, case.box_bytes]
                bench.launch(library, f"load_{rank}d", 1, THREADS, arguments, shared=case.box_bytes + 1024)
                tiles.append(bench.read(out, WORDS[WIDTHS[case.kind]]))
            return np.concatenate(tiles)

        def expected(case: Tiled = case, name: str = name) -> Array:
            return np.concatenate([case.loaded(case.data(name), place) for place in case.places])

        covers = (
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes cuTensorMapEncodeTiled"
        )
        made.add(name, covers, run, case.kind, expected)


# ... and stores none that are negative.
STORES = {
    "1d u8": Tiled("u8", (300,), (64,), ((0,), (112,), (272,))),
    "2d f16": Tiled("f16", (40, 20), (16, 8), ((0, 0), (16, 9), (32, 16), (48, 0), (0, 30))),
    "2d f32 padded": Tiled("f32", (20, 9), (12, 4), ((4, 3), (12, 7)), padding=16),
    "2d f32 tail": Tiled("f32", (21, 9), (12, 4), ((12, 3), (20, 6)), padding=28),
    "2d f16 tail": Tiled("f16", (43, 20), (16, 8), ((32, 5), (40, 15)), padding=26),
    "2d f16 32B": Tiled("f16", (40, 20), (16, 16), ((8, 2), (32, 10)), swizzle=1),
    "2d f16 64B": Tiled("f16", (40, 20), (32, 16), ((8, 2), (32, 10)), swizzle=2),
    "2d bf16 128B": Tiled("bf16", (80, 20), (64, 16), ((8, 2), (64, 10)), swizzle=3),
    "3d f16": Tiled("f16", (16, 7, 5), (8, 4, 3), ((0, 1, 1), (8, 5, 3))),
    "4d f32": Tiled("f32", (8, 5, 4, 3), (4, 3, 2, 2), ((0, 1, 1, 0), (4, 3, 3, 2))),
    "5d f32": Tiled("f32", (8, 4, 3, 3, 3), (4, 2, 2, 2, 2), ((0, 1, 1, 1, 0), (4, 3, 2, 2, 2))),
}  # fmt: skip


def _write(
    made: Family,
    library: Library,
    title: str,
    case: Tiled,
    instruction: str,
    rule: Callable[[int, int], int],
    prefetch: str = "",
    chunk: int = 1,
) -> None:
    """A check that stores or reduces boxes into a tensor, in whole chunks of so many elements."""
    rank = len(case.sizes)
    kernel = "write_" + "".join(c if c.isalnum() else "_" for c in title)
    library.add(kernel, store_kernel(kernel, instruction, rank, prefetch))

    def before() -> Array:
        return _operands(case, title)[0]

    def tile(number_of_place: int) -> Array:
        count = case.box_bytes // case.size
        return np.resize(np.roll(_operands(case, title)[1], 17 * number_of_place), count)

    def run(bench: Bench) -> Array:
        memory = bench.upload(before())
        tensor_map = encode(bench, case, memory)
        for i, place in enumerate(case.places):
            arguments = [tensor_map, bench.upload(where(place)), bench.upload(tile(i)), case.box_bytes]
            bench.launch(library, kernel, 1, THREADS, arguments, shared=case.box_bytes + 1024)
        return bench.read(memory, WORDS[WIDTHS[case.kind]])

    def expected() -> Array:
        found = before().tolist()
        mask = (1 << WIDTHS[case.kind]) - 1
        for i, place in enumerate(case.places):
            words = tile(i).tolist()
            for slot, index in case.elements(place, chunk):
                if index is not None and index < len(found):
                    found[index] = rule(found[index], words[slot]) & mask
        return np.array(found, WORDS[WIDTHS[case.kind]])

    made.add(title, (instruction, *opcodes(prefetch)), run, case.kind, expected)


def _operands(case: Tiled, title: str) -> list[Array]:
    """The tensor and what is written to it: integers of any bits, floats of moderate size."""
    count = case.tensor_bytes // case.size
    make = values.moderate if case.kind in ("f16", "bf16", "f32", "f64") else values.bits
    return [make(title + part, case.kind, count) for part in ("old", "new")]


def _stores(made: Family, library: Library) -> None:
    for title, case in STORES.items():
        rank = len(case.sizes)
        chunk = (
            16 // case.size
        )  # an H200 writes all of the last 16 bytes that a row has a part of, whatever the tensor's size says
        _write(made, library, f"store {title}", case, STORE.format(rank=rank), lambda _old, new: new, chunk=chunk)
        if title == "2d f16":
            prefetch = "@q prefetch.tensormap [m]; @q cp.async.bulk.prefetch.tensor.2d.L2.global.tile [m, {c0, c1}];"
            _write(
                made,
                library,
                f"prefetch and store {title}",
                case,
                STORE.format(rank=2),
                lambda _old, new: new,
                prefetch,
            )


def _reductions(made: Family, library: Library) -> None:
    box = ((16, 9), (8, 4), ((4, 1), (12, 7)))
    for kind in ("u32", "s32", "u64", "s64"):
        case = Tiled(kind, *box)
        rules: dict[str, Callable[[int, int], int]] = {
            "min": lambda old, new, kind=kind: min(number(kind, old), number(kind, new)),  # type: ignore[misc]
            "max": lambda old, new, kind=kind: max(number(kind, old), number(kind, new)),  # type: ignore[misc]
        }
        if kind != "s64":  # an H200 refuses these of s64: see faults.py
            rules["and"] = lambda old, new: old & new
            rules["or"] = lambda old, new: old | new
            rules["xor"] = lambda old, new: old ^ new
            rules["add"] = lambda old, new: old + new
        if kind == "u32":
            rules["inc"] = lambda old, new: 0 if old >= new else old + 1
            rules["dec"] = lambda old, new: new if old == 0 or old > new else old - 1
        for operation, rule in rules.items():
            instruction = REDUCE.format(rank=2, operation=operation)
            _write(made, library, f"reduce {operation} {kind}", case, instruction, rule)
    for kind in ("f16", "bf16", "f32"):
        case = Tiled(kind, (32, 9), (16, 4), ((8, 1), (24, 7)))
        rules = {"add": lift(kind, add_numbers("rn"), flush=kind == "f32")}
        if kind != "f32":
            rules["min"] = lift(kind, lambda a, b: exact.smallest(a, b))
            rules["max"] = lift(kind, lambda a, b: exact.smallest(a, b, largest=True))
        for operation, rule in rules.items():
            instruction = REDUCE.format(rank=2, operation=operation)
            _write(made, library, f"reduce {operation} {kind}", case, instruction, rule)
    for rank, title in ((1, "1d u8"), (3, "3d f16"), (4, "4d f32"), (5, "5d f32")):
        case = STORES[title]
        if rank == 1:
            case = Tiled("u32", (100,), (32,), ((4,), (88,)))
        rule = (
            (lambda old, new: old + new) if rank == 1 else lift(case.kind, add_numbers("rn"), flush=case.kind == "f32")
        )
        instruction = REDUCE.format(rank=rank, operation="add")
        _write(made, library, f"reduce add {rank}d {case.kind}", case, instruction, rule)


def _multicast(made: Family, library: Library) -> None:
    library.add("load_multicast", multicast_kernel("load_multicast"))
    case = Tiled("f16", (64, 24), (64, 8), ((0, 3), (0, 11)), swizzle=3)

    def run(bench: Bench) -> Array:
        tensor_map = encode(bench, case, bench.upload(case.data("multicast")))
        both = 2 * case.box_bytes
        out = bench.output(2 * both, np.uint8)
        arguments = [tensor_map, bench.upload(where((0, 3))), out, both]
        bench.launch(library, "load_multicast", 2, THREADS, arguments, shared=both + 1024, cluster=2)
        return bench.read(out, np.uint16)

    def expected() -> Array:
        return np.tile(np.concatenate([case.loaded(case.data("multicast"), place) for place in case.places]), 2)

    covers = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
    made.add("load multicast", covers, run, "f16", expected)


def family() -> Family:
    """The checks."""
    made = Family("tensor")
    library = ptx_library(DECLARATIONS)
    _loads(made, library)
    _stores(made, library)
    _reductions(made, library)
    _multicast(made, library)
    return made
