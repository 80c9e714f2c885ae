"""Transforms between two element types of tensors whose innermost dimensions differ, through tiles in shared memory.

Between the filters of a step under autocast, in float32, and what matrix units multiply: 16 bits with the channels innermost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    SMALL_DIVISOR,
    TENSOR_VIEW,
    c_type,
    divisor,
    generate,
    record,
    small_divisor,
    struct,
    view,
)
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.transpose import Matrices
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import AddProblem

__all__ = ["PLACES", "ConvertTransposed", "tile_of"]

_THREADS = 128
"""kConvertTransposedThreads in convert_transposed.cuh."""

PLACES = 2112
"""Of a tile, with what pads its rows; kConvertTransposedPlaces."""

_WHOLE, _MULTIPLE = 64, 32
"""A tile has all rows, or columns, where they are no more than the one, and a multiple of the other along the longer side."""

_NARROW = (DType.FLOAT16, DType.BFLOAT16)
_PAIRS = (*((DType.FLOAT32, narrow) for narrow in _NARROW), *((narrow, DType.FLOAT32) for narrow in _NARROW))

_PARAMS = struct(
    *BLEND,
    ("a", ADDRESS),
    ("c", ADDRESS),
    ("rows", "<i8"),
    ("columns", "<i8"),
    ("a_row", "<i8"),
    ("c_column", "<i8"),
    ("tiles", "<i8"),
    ("row_tiles", DIVISOR),
    ("column_tiles", DIVISOR),
    ("tile_rows", SMALL_DIVISOR),
    ("tile_columns", SMALL_DIVISOR),
    ("a_batch", TENSOR_VIEW),
    ("c_batch", TENSOR_VIEW),
)

_OF_MEMORY_RATE = 0.8
"""Assumed: somewhat less than `transpose`."""

_PLACE = 45
"""Multiply-adds in whose time a place of a tile passes. Assumed: so many instructions read and write one that is not paired."""


def tile_of(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a tile, whose rows are padded to an odd number of places."""
    if columns <= rows:
        across = min(max(columns, 1), _WHOLE)
        return _fitting(rows, PLACES // (across | 1)), across
    down = min(max(rows, 1), _WHOLE)
    return down, _fitting(columns, PLACES // down - 1)


def _fitting(extent: int, most: int) -> int:
    """The multiple that cuts an extent into as few parts as it must be, of lengths as equal as they may be."""
    parts = -(-extent // (most // _MULTIPLE * _MULTIPLE))
    return -(-max(extent, 1) // (max(parts, 1) * _MULTIPLE)) * _MULTIPLE


@dataclass(frozen=True, slots=True)
class ConvertTransposed:
    """c = alpha * a + beta * c, where another dimension is innermost in a than in c, and one is in 16 bits. Immutable."""

    name: str = "convert_transposed"

    def offer(self, problem: AddProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        if (problem.a.dtype, problem.c.dtype) not in _PAIRS:
            return f"a is {problem.a.dtype.value}, c {problem.c.dtype.value}; it is for float32 to 16 bits and back"
        matrices = Matrices.of(problem)
        if matrices is None:
            return "the tensors do not differ in which dimension is contiguous"
        down, across = tile = tile_of(matrices.rows, matrices.columns)
        tiles = math.prod(matrices.batch[0]) * -(-matrices.rows // down) * -(-matrices.columns // across)
        seconds = max(
            operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE),
            tiles * down * across * _PLACE / figures.products_per_second(Maths.FP32),
        )
        return Offer(figures.launch_seconds + seconds, partial(_prepare, problem, figures, matrices, tile, tiles))

    def units(self) -> tuple[Unit, ...]:
        """One for each pair of dtypes."""
        return tuple(_unit(*pair) for pair in _PAIRS)


def _prepare(
    problem: AddProblem, figures: DeviceFigures, matrices: Matrices, tile: tuple[int, int], tiles: int
) -> Calls:
    extents, a_strides, c_strides = matrices.batch
    down, across = tile
    params = record(
        _PARAMS,
        rows=matrices.rows,
        columns=matrices.columns,
        a_row=matrices.a_row,
        c_column=matrices.c_column,
        tiles=tiles,
        row_tiles=divisor(-(-matrices.rows // down)),
        column_tiles=divisor(-(-matrices.columns // across)),
        tile_rows=small_divisor(down),
        tile_columns=small_divisor(across),
        a_batch=view(extents, a_strides),
        c_batch=view(extents, c_strides),
    )
    return kernel_call(
        _unit(problem.a.dtype, problem.c.dtype),
        blocks_for(figures, tiles, 1),
        _THREADS,
        params,
        in_order("a", "c"),
        starts_early=figures.starts_early,
    )


@cache
def _unit(a: DType, c: DType) -> Unit:
    return generate(
        header="dnncore/convert_transposed.cuh",
        entry=f"convert_transposed_{c_type(a)}_{c_type(c)}",
        function=f"convert_transposed<{c_type(a)}, {c_type(c)}>",
        struct_name="ConvertTransposedParams",
        dtype=_PARAMS,
        threads=_THREADS,
        starts_early=True,
    )
