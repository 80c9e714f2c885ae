"""Transforms between layouts whose innermost dimensions differ, through tiles in shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, Place, WhereAligned, blocks_for, in_order, kernel_call
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    ELEMENT_TYPES,
    TENSOR_VIEW,
    c_type,
    collapsed,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import AddProblem

__all__ = ["TRANSPOSES_OF_MEMORY_RATE", "Matrices", "Transpose", "TransposePairs"]

_TILE = 32
"""Rows and columns of a tile; kTransposeTile in transpose.cuh."""

_PAIRS_TILE = 2 * _TILE
"""The same of pairs."""

_THREADS = 32 * 4
"""A warp a row at a time; kTransposeWarps in transpose.cuh is the 4."""

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("output", ADDRESS),
    ("rows", "<i8"),
    ("columns", "<i8"),
    ("x_row", "<i8"),
    ("output_column", "<i8"),
    ("tiles", "<i8"),
    ("row_tiles", DIVISOR),
    ("column_tiles", DIVISOR),
    ("x_batch", TENSOR_VIEW),
    ("output_batch", TENSOR_VIEW),
)

TRANSPOSES_OF_MEMORY_RATE = 0.9
"""Of the memory rate [measured on an H200: NCHW to NHWC and back, fp64]."""

_PLACE = 72
"""Multiply-adds in whose time a place of a tile passes, be it filled or empty [measured on an H200: NCHW to NHWC, 64 channels]."""

_PLACE_OF_PAIRS = 31
"""The same of pairs [fitted on an H200: the 171 transposes of a training step of ResNet-50]."""

_OF_16_BITS = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Matrices:
    """A transform as a kernel sees it: matrices of `a` that are to be transposed. Immutable."""

    rows: int  # contiguous in c
    columns: int  # contiguous in a
    a_row: int
    c_column: int
    batch: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # extents, strides in a, strides in c

    @classmethod
    @lru_cache(maxsize=8)  # both kernels ask
    def of(cls, problem: AddProblem) -> Matrices | None:
        """None where one dimension is innermost in both tensors, where one of them has none, or where a is broadcast along it."""
        a, c = problem.a, problem.c
        given = a.strides
        if a.shape != c.shape:
            given = tuple([step if extent > 1 else 0 for step, extent in zip(a.strides, a.shape, strict=True)])
        extents, a_strides, c_strides = collapsed(c.shape, given, c.strides)
        row = len(extents) - 1
        if 1 not in a_strides[:row] or a_strides[row] == 0 or c_strides[row] != 1:
            return None
        column = a_strides.index(1)
        rest = [axis for axis in range(row) if axis != column]
        batch = (
            tuple([extents[i] for i in rest]),
            tuple([a_strides[i] for i in rest]),
            tuple([c_strides[i] for i in rest]),
        )
        return cls(extents[row], extents[column], a_strides[row], c_strides[column], batch)

    @property
    def are_even(self) -> bool:
        """Whether no pair of neighbours is split by an edge, a row or a matrix."""
        odd = self.rows | self.columns | self.a_row | self.c_column
        for extent, a_step, c_step in zip(*self.batch, strict=True):
            if extent > 1:
                odd |= a_step | c_step
        return odd % 2 == 0

    def tiles(self, size: int) -> tuple[int, int]:
        """Tiles of each matrix, of so many rows and columns, along its rows and along its columns."""
        return -(-self.rows // size), -(-self.columns // size)

    def num_tiles(self, size: int) -> int:
        """Tiles of all matrices."""
        return math.prod((*self.batch[0], *self.tiles(size)))


@dataclass(frozen=True, slots=True)
class Transpose:
    """c = alpha * a + beta * c, where another dimension is innermost in a than in c. Immutable."""

    name: str = "transpose"

    def offer(self, problem: AddProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        matrices = _matrices(problem)
        if isinstance(matrices, str):
            return matrices
        seconds = _seconds(problem, matrices, _TILE, _PLACE, figures)
        return Offer(seconds, partial(_prepare, _unit(problem.c.dtype), _TILE, figures, matrices))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_unit(dtype) for dtype in ELEMENT_TYPES)


@dataclass(frozen=True, slots=True)
class TransposePairs:
    """`Transpose` of 16 bits, two by two: where matrices are even, and at addresses that are. Immutable."""

    name: str = "transpose_pairs"

    def offer(self, problem: AddProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        if problem.a.dtype is not problem.c.dtype or problem.c.dtype not in _OF_16_BITS:
            return f"a is {problem.a.dtype.value}, c {problem.c.dtype.value}; both must be of 16 bits"
        matrices = _matrices(problem)
        if isinstance(matrices, str):
            return matrices
        if not matrices.are_even:
            return "an extent or a stride is odd"
        seconds = _seconds(problem, matrices, _PAIRS_TILE, _PLACE_OF_PAIRS, figures)
        return Offer(seconds, partial(_prepare_pairs, problem.c.dtype, figures, matrices))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_unit(dtype, "transpose_pairs") for dtype in _OF_16_BITS)


def _matrices(problem: AddProblem) -> Matrices | str:
    """What is transposed, once for both kernels that ask; or the reason why nothing is."""
    if problem.a.dtype is not problem.c.dtype:
        return f"a is {problem.a.dtype.value}, c {problem.c.dtype.value}"
    if problem.c.dtype not in ELEMENT_TYPES:
        return f"the tensors are {problem.c.dtype.value}"
    matrices = Matrices.of(problem)
    if matrices is None:
        return "the tensors do not differ in which dimension is contiguous"
    if min(matrices.rows, matrices.columns) < _TILE // 2:
        return f"a {matrices.rows} x {matrices.columns} matrix leaves most of a {_TILE} x {_TILE} tile empty"
    return matrices


def _seconds(problem: AddProblem, matrices: Matrices, size: int, place: float, figures: DeviceFigures) -> float:
    """What the bytes take or, if that is more, the places of all tiles."""
    return figures.launch_seconds + max(
        operand_bytes(problem) / (figures.bytes_per_second * TRANSPOSES_OF_MEMORY_RATE),
        matrices.num_tiles(size) * size**2 * place / figures.products_per_second(Maths.FP32),
    )


def _prepare_pairs(dtype: DType, figures: DeviceFigures, matrices: Matrices) -> Calls:
    calls = _prepare(_unit(dtype, "transpose_pairs"), _PAIRS_TILE, figures, matrices)
    words = ((Place(0), 2 * dtype.itemsize), (Place(1), 2 * dtype.itemsize))
    return (WhereAligned(words, calls, partial(_prepare, _unit(dtype), _TILE, figures, matrices)),)


def _prepare(unit: Unit, size: int, figures: DeviceFigures, matrices: Matrices) -> Calls:
    extents, a_strides, c_strides = matrices.batch
    row_tiles, column_tiles = matrices.tiles(size)
    tiles = matrices.num_tiles(size)
    params = record(
        _PARAMS,
        rows=matrices.rows,
        columns=matrices.columns,
        x_row=matrices.a_row,
        output_column=matrices.c_column,
        tiles=tiles,
        row_tiles=divisor(row_tiles),
        column_tiles=divisor(column_tiles),
        x_batch=view(extents, a_strides),
        output_batch=view(extents, c_strides),
    )
    return kernel_call(unit, blocks_for(figures, tiles, 1), _THREADS, params, in_order("x", "output"))


@cache
def _unit(dtype: DType, function: str = "transpose") -> Unit:
    return generate(
        header="dnncore/transpose.cuh",
        entry=f"{function}_{c_type(dtype)}",
        function=f"{function}<{c_type(dtype)}>",
        struct_name="TransposeParams",
        dtype=_PARAMS,
        threads=_THREADS,
    )
