"""Transforms between layouts whose innermost dimensions differ, through tiles in shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    TENSOR_VIEW,
    c_type,
    collapse,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.dtypes import DType
from dnncore.problems import AddProblem

__all__ = ["Transpose"]

_TILE = 32
"""Rows and columns of a tile; kTransposeTile in transpose.cuh."""

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


@dataclass(frozen=True, slots=True)
class _Matrices:
    """The transform as the kernel sees it: matrices of `a` that are to be transposed. Immutable."""

    rows: int  # contiguous in c
    columns: int  # contiguous in a
    a_row: int
    c_column: int
    batch: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # extents, strides in a, strides in c

    @classmethod
    def of(cls, problem: AddProblem) -> _Matrices | None:
        """None where one dimension is innermost in both tensors, where one of them has none, or where a is broadcast along it."""
        a, c = problem.a, problem.c
        steps = (stride if extent != 1 else 0 for extent, stride in zip(a.shape, a.strides, strict=True))
        extents, a_strides, c_strides = collapse(c.shape, tuple(steps), c.strides)
        row = len(extents) - 1
        column = next((axis for axis in range(row) if a_strides[axis] == 1), None)
        if column is None or a_strides[row] == 0 or c_strides[row] != 1:
            return None
        rest = [axis for axis in range(row) if axis != column]
        extents_of_batch = tuple(extents[axis] for axis in rest)
        batch = (extents_of_batch, tuple(a_strides[i] for i in rest), tuple(c_strides[i] for i in rest))
        return cls(extents[row], extents[column], a_strides[row], c_strides[column], batch)


@dataclass(frozen=True, slots=True)
class Transpose:
    """c = alpha * a + beta * c, where another dimension is innermost in a than in c. Immutable."""

    name: str = "transpose"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: AddProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        if problem.a.dtype is not problem.c.dtype:
            return f"a is {problem.a.dtype.value}, c {problem.c.dtype.value}"
        matrices = _Matrices.of(problem)
        if matrices is None:
            return "the tensors do not differ in which dimension is contiguous"
        if min(matrices.rows, matrices.columns) < _TILE // 2:
            return f"a {matrices.rows} x {matrices.columns} matrix leaves most of a {_TILE} x {_TILE} tile empty"
        return None

    def workspace_bytes(self, problem: AddProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in DType)

    def prepare(self, problem: AddProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        matrices = _Matrices.of(problem)
        assert matrices is not None, "supports() said so"
        extents, a_strides, c_strides = matrices.batch
        row_tiles, column_tiles = -(-matrices.rows // _TILE), -(-matrices.columns // _TILE)
        tiles = math.prod(extents) * row_tiles * column_tiles
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
        kernel = device.kernel(self._unit(problem.c.dtype))
        return single(kernel, (blocks_for(tiles, 1), 1, 1), (_THREADS, 1, 1), params, ("x",), ("output",))

    def _unit(self, dtype: DType) -> Unit:
        return generate(
            header="dnncore/transpose.cuh",
            entry=f"transpose_{c_type(dtype)}",
            function=f"transpose<{c_type(dtype)}>",
            struct_name="TransposeParams",
            dtype=_PARAMS,
            threads=_THREADS,
        )
