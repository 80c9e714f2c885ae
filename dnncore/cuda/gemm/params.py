"""`dnncore::gemm::Params` in NumPy, filled in from a `Product`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from dnncore.cuda.activation import ACTIVATION, activation_record
from dnncore.cuda.calls import FieldPath
from dnncore.cuda.gemm.index_space import MAX_COORDINATES, MAX_DIGITS, Digit, Epilogue, Phase, Product
from dnncore.cuda.params import ADDRESS, BLEND, ELEMENT_TYPES, offset_of, packer, struct

__all__ = [
    "BLEND_AND_EPILOGUE",
    "EPILOGUE",
    "MAX_PHASES",
    "PARAMS",
    "Store",
    "choose_store",
    "fields_of",
    "fill_epilogue",
    "make_params",
    "tiles_along",
]

MAX_PHASES = 8


class Store(IntEnum):
    """Along which index vectors of C are stored; `dnncore::gemm::Store`."""

    SINGLE = 0
    COLUMNS = 1
    ROWS = 2


_DIGIT = struct(
    ("b_stride", "<i8"),
    ("other_stride", "<i8"),
    ("step", "<i4", MAX_COORDINATES),
    ("extent", "<u4"),
    ("magic", "<u4"),
    ("shift", "<u4"),
)
_PHASE = struct(
    ("column", _DIGIT, MAX_DIGITS),
    ("reduction", _DIGIT, MAX_DIGITS),
    ("a_offset", "<i8"),
    ("b_offset", "<i8"),
    ("c_offset", "<i8"),
    ("c_column_step", "<i8"),
    ("first", "<i4", MAX_COORDINATES),
    ("columns", "<u4"),
    ("reduction_length", "<u4"),
    ("first_entry", "<u4"),
)
EPILOGUE = struct(
    ("alpha1", "<f8"),
    ("alpha2", "<f8"),
    ("activation", ACTIVATION),
    ("scale", ADDRESS),
    ("bias", ADDRESS),
    ("z", ADDRESS),
    ("scale_stride", "<i8"),
    ("bias_stride", "<i8"),
    ("widened", "<u4"),
    ("is_present", "<u4"),
)
"""`dnncore::Epilogue` of gemm/epilogue.cuh; filled in by `fill_epilogue`."""

BLEND_AND_EPILOGUE = (*BLEND, ("epilogue", EPILOGUE))
"""First in the struct of a kernel of plain convolutions that can finish fused ones too (`convolution.finished`)."""

_HEAD = (
    *BLEND,
    ("a", ADDRESS),
    ("b", ADDRESS),
    ("c", ADDRESS),
    ("parts", ADDRESS),
    ("tickets", ADDRESS),
    ("a_row_stride", "<i8"),
    ("c_row_stride", "<i8"),
    ("a_group_stride", "<i8"),
    ("b_group_stride", "<i8"),
    ("c_group_stride", "<i8"),
    ("split_stride", "<i8"),
    ("bounds", "<i4", MAX_COORDINATES),
    ("rows", "<u4"),
    ("row_tiles", "<u4"),
    ("column_tiles", "<u4"),
    ("groups", "<u4"),
    ("splits", "<u4"),
    ("split_length", "<u4"),
    ("store", "<u4"),
)
PARAMS = struct(
    *_HEAD,
    ("phase", _PHASE, MAX_PHASES),
    ("epilogue", EPILOGUE),
    ("table", ADDRESS),
    ("output_type", "<i4"),
)
_PHASES_AT, _PACKED_HEAD, _PACKED_PHASE = offset_of(PARAMS, "phase"), packer(struct(*_HEAD)), packer(_PHASE)
_NO_FACTORS, _NO_ADDRESSES = (0.0,) * 2, (0,) * 5
_NO_STEPS = (0,) * MAX_COORDINATES
_NO_BOUNDS = (1,) * MAX_COORDINATES
"""An axis that is not there has coordinate 0 always."""

_NO_DIGIT = [0, 0, *_NO_STEPS, 1, 1 << 31, 31]
"""One that is not there is slowest, of extent 1 and stride 0."""


def _digits(digits: tuple[Digit, ...]) -> list[int]:
    """The numbers of a column or of a reduction."""
    numbers: list[int] = []
    for extent, b_stride, other_stride, steps in digits:
        shift = 31 + (extent - 1).bit_length()
        magic = -(-(1 << shift) // extent)
        numbers += (b_stride, other_stride, *steps, *_NO_STEPS[len(steps) :], extent, magic, shift)
    return numbers + _NO_DIGIT * (MAX_DIGITS - len(digits))


def _packed(phase: Phase) -> bytes:
    """A _PHASE, all but the table's first entry."""
    return _PACKED_PHASE.pack(
        *_digits(phase.column),
        *_digits(phase.reduction),
        phase.a_offset,
        phase.b_offset,
        phase.c_offset,
        _column_step(phase),
        *phase.first,
        *_NO_STEPS[len(phase.first) :],
        phase.num_columns,
        phase.reduction_length,
        0,
    )


def _column_step(phase: Phase) -> int:
    """Elements of C from each column to the next; 0 where they are not the same."""
    if not phase.column:
        return 1
    step = stride = phase.column[0].other_stride
    for digit in phase.column:
        if digit.other_stride != stride:
            return 0
        stride *= digit.extent
    return step


def fields_of(inputs: Sequence[str]) -> tuple[FieldPath, ...]:
    """The fields that take the addresses of a product's inputs; those of its epilogue have a struct of their own."""
    return tuple(name if name in ("a", "b") else ("epilogue", name) for name in inputs)


def fill_epilogue(record: np.ndarray, epilogue: Epilogue) -> None:
    """Fill in an EPILOGUE, all but addresses."""
    for name in ("alpha1", "alpha2", "scale_stride", "bias_stride", "widened"):
        record[name] = getattr(epilogue, name)
    record["activation"] = activation_record(epilogue.activation)
    record["is_present"] = True


def choose_store(product: Product) -> Store:
    """Choose a store of vectors where every aligned group of columns, or of rows, is contiguous and aligned in C.

    A group is 16 bytes; where operands have 16 or 8 bits it is `dnncore::gemm::kGroup` elements, whatever is stored.
    """
    size = 8 if product.dtype.itemsize <= 2 else 16 // product.dtype.itemsize
    row_stride = product.c_row_stride if product.rows > 1 else 0
    others = [phase.c_offset for phase in product.phases]
    others += [product.c_group_stride] if product.groups > 1 else []
    runs = []
    for phase in product.phases:
        run, digits = _contiguous_columns(phase)
        runs.append(run)
        others += [digit.other_stride for digit in digits]
    if all(stride % size == 0 for stride in (*runs, *others, row_stride)):
        return Store.COLUMNS
    all_digits = [digit.other_stride for phase in product.phases for digit in phase.column]
    if row_stride == 1 and all(stride % size == 0 for stride in (product.rows, *others, *all_digits)):
        return Store.ROWS
    return Store.SINGLE


def _contiguous_columns(phase: Phase) -> tuple[int, tuple[Digit, ...]]:
    """Count the columns that are contiguous in C from the first on, and return the digits that are not among them."""
    run = 1
    for i, digit in enumerate(phase.column):
        if digit.other_stride != run:
            return run, phase.column[i:]
        run *= digit.extent
    return run, ()


def tiles_along(rows: int, phases: Sequence[Phase], tile_rows: int, tile_columns: int) -> tuple[int, int]:
    """How many tiles cover the rows, and how many the columns of the phase that has most."""
    return -(-rows // tile_rows), max([-(-phase.num_columns // tile_columns) for phase in phases])


def make_params(product: Product, phases: Sequence[Phase], tile_rows: int, tile_columns: int) -> np.ndarray:
    """Fill in the struct for one launch, all but addresses and blending factors.

    Args:
        product: What is computed.
        phases: Which of its phases, at most MAX_PHASES.
        tile_rows: Rows of C per block.
        tile_columns: Columns of C per block.
    """
    packed = bytearray(PARAMS.itemsize)
    _PACKED_HEAD.pack_into(
        packed,
        0,
        *_NO_FACTORS,
        *_NO_ADDRESSES,
        product.a_row_stride,
        product.c_row_stride,
        product.a_group_stride,
        product.b_group_stride,
        product.c_group_stride,
        0,  # of parts
        *product.bounds,
        *_NO_BOUNDS[len(product.bounds) :],
        product.rows,
        *tiles_along(product.rows, phases, tile_rows, tile_columns),
        product.groups,
        1,
        max([phase.reduction_length for phase in phases]),
        choose_store(product),
    )
    packed[_PHASES_AT : _PHASES_AT + len(phases) * _PHASE.itemsize] = b"".join(map(_packed, phases))
    params = np.frombuffer(packed, PARAMS).reshape(())
    params["output_type"] = ELEMENT_TYPES.index(product.output or product.dtype)
    if product.epilogue is not None:
        fill_epilogue(params["epilogue"], product.epilogue)
    return params
