"""Softmax, forward and backward: a thread, a warp or a block for what is normalised together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    FLOATING,
    TENSOR_VIEW,
    c_type,
    collapse,
    generate_together,
    record,
    struct,
    view,
)
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import SoftmaxBackwardProblem, SoftmaxForwardProblem

__all__ = ["BACKWARD", "FORWARD", "Softmax", "has_packs", "kept", "seconds_for", "threads_for"]

SoftmaxProblem = SoftmaxForwardProblem | SoftmaxBackwardProblem

_PARAMS = struct(
    *BLEND,
    ("input_0", ADDRESS),
    ("input_1", ADDRESS),
    ("output", ADDRESS),
    ("rows", "<i8"),
    ("length", "<i8"),
    ("row_views", TENSOR_VIEW, (3,)),
    ("element_views", TENSOR_VIEW, (3,)),
    ("kind", "<i4"),
    ("has_packs", "<i4"),
)

_KEPT_BYTES = 128
"""Computed values that a thread keeps in registers: kKept in softmax_row.cuh."""

_KERNELS = {
    "thread_per_row": "ThreadPerRow, true",
    "thread_per_row_streamed": "ThreadPerRow, false",
    "warp_per_row": "WarpPerRow, true",
    "block_per_row": "BlockPerRow, true",
    "block_per_row_streamed": "BlockPerRow, false",
}
"""Template arguments of those that keep a row in registers, and of those that do not."""

_THREADS = dict(zip(_KERNELS, (128, 128, 128, 1024, 512), strict=True))
"""Most threads per block; a block that has a row takes as many as the row needs."""

_ROWS_PER_BLOCK = {"thread_per_row": 128, "warp_per_row": 4, "block_per_row": 1}

_SHORT = 32
"""Rows up to this long would leave much of a warp idle."""

_OF_MEMORY_RATE = {2: 0.75, 4: 0.95, 8: 0.95}
"""By the bytes of an element, but for what a row costs; fitted on an H200."""

_ROW_COST = {"thread_per_row": 0, "warp_per_row": 64, "block_per_row": 4096}
"""Elements that could be moved while a row's threads put together what each has found; fitted likewise."""

_APART, _OWN = 0.25, 0.8
"""Of the rate, where neighbouring threads do not read neighbours: of rows that lie side by side a cache line is used by several
teams; a thread that reads short rows of its own has the next elements in the first-level cache. Assumed."""

_KINDS = (SoftmaxAlgorithm.FAST, SoftmaxAlgorithm.ACCURATE, SoftmaxAlgorithm.LOG)
"""In the order of `dnncore::SoftmaxKind`."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """One direction of softmax. Immutable.

    Args:
        name: "thread_per_row", for short rows and for rows that lie side by side; "warp_per_row", for rows that fit in a warp's
            registers; or "block_per_row".
        direction: "forward" or "backward".
    """

    name: str
    direction: str

    def offer(self, problem: SoftmaxProblem, figures: DeviceFigures) -> Offer | str:
        """What it would take; or the reason why it cannot, or had better not."""
        (output,) = problem.outputs
        rows, elements = _split(problem)
        length, keeps = math.prod(elements[0]), self._keeps(output.dtype, elements[0])
        side_by_side = all(step[-1] == 1 for step in rows[1:]) and rows[0][-1] >= _SHORT
        if self.name == "warp_per_row" and not keeps:
            return f"rows of {length} elements do not fit in a warp's registers"
        if self.name == "thread_per_row" and length > _SHORT and not side_by_side:
            return f"rows of {length} elements are longer than {_SHORT} and do not lie side by side"
        reach = 1.0
        if self.name == "thread_per_row":
            reach = 1.0 if side_by_side else _OWN
        elif any(step[-1] != 1 for step in elements[1:]):
            reach = _APART
        again = 0 if keeps else len(problem.inputs) * output.size * output.dtype.itemsize
        nbytes = operand_bytes(problem) + again
        seconds = seconds_for(figures, self.name, math.prod(rows[0]), output.dtype, nbytes, reach)
        return Offer(seconds, partial(self._prepare, problem, figures, rows, elements, keeps))

    def units(self) -> tuple[Unit, ...]:
        """Those of _KERNELS for each dtype."""
        kernels = [kernel for kernel in _KERNELS if kernel.startswith(self.name)]
        return tuple(self._unit(dtype, kernel) for dtype in FLOATING for kernel in kernels)

    def _prepare(
        self, problem: SoftmaxProblem, figures: DeviceFigures, rows: _Frame, elements: _Frame, keeps: bool
    ) -> Calls:
        (output,) = problem.outputs
        (row_shape, *row_strides), (element_shape, *element_strides) = rows, elements
        params = record(
            _PARAMS,
            rows=math.prod(row_shape),
            length=math.prod(element_shape),
            kind=_KINDS.index(problem.algorithm),
            has_packs=has_packs(output.dtype, element_shape, *element_strides),
        )
        # The output's views come last, whatever the number of inputs.
        for place, row_step, element_step in zip(
            (*range(len(problem.inputs)), 2), row_strides, element_strides, strict=True
        ):
            params["row_views"][place] = view(row_shape, row_step)
            params["element_views"][place] = view(element_shape, element_step)
        blocks = blocks_for(figures, int(params["rows"]), _ROWS_PER_BLOCK[self.name]) if output.size else 0
        kernel = self.name if keeps else f"{self.name}_streamed"
        threads, shared_bytes = _THREADS[kernel], 0
        if self.name == "block_per_row":
            threads = threads_for(int(params["length"]), output.dtype, threads)
            if self.direction == "backward":  # what each thread keeps of dy
                shared_bytes = threads * kept(output.dtype) * output.dtype.itemsize
        operands = in_order(*("input_0", "input_1")[: len(problem.inputs)], "output")
        unit = self._unit(output.dtype, kernel)
        return kernel_call(unit, blocks, threads, params, operands, shared_bytes=shared_bytes)

    def _keeps(self, dtype: DType, shape: tuple[int, ...]) -> bool:
        """Whether a row stays in registers: its elements are few, and in one dimension."""
        members = _THREADS[self.name] // _ROWS_PER_BLOCK[self.name]
        return len(shape) == 1 and shape[0] <= members * kept(dtype)

    def _unit(self, dtype: DType, kernel: str) -> Unit:
        """One of _KERNELS; all of a direction, dtype and number of threads per block share a source."""
        threads = _THREADS[kernel]
        entries = {
            name: f"softmax_{self.direction}_{name}_{c_type(dtype)}" for name in _KERNELS if _THREADS[name] == threads
        }
        functions = {
            entry: f"softmax_{self.direction}<{c_type(dtype)}, {_KERNELS[name]}>" for name, entry in entries.items()
        }
        units = generate_together("dnncore/softmax.cuh", functions, "SoftmaxParams", _PARAMS, threads)
        return units[entries[kernel]]


def kept(dtype: DType) -> int:
    """Elements of a row that one of its threads keeps in registers."""
    return _KEPT_BYTES // dtype.compute.itemsize


def threads_for(length: int, dtype: DType, most: int) -> int:
    """Threads of a block that keeps a row of that many elements, or goes through it: whole warps, no more than `most`."""
    return min(max(-(-length // (32 * kept(dtype))), 1) * 32, most)


def seconds_for(figures: DeviceFigures, team: str, rows: int, dtype: DType, nbytes: int, reach: float = 1.0) -> float:
    """Estimated time of a launch over rows; softmax's and cross-entropy's.

    Args:
        figures: Of the device.
        team: What a row is given to: the algorithm's name. Of few rows, each has a multiprocessor of its own, and others have none.
        rows: How many there are.
        dtype: Of the elements.
        nbytes: Read and written.
        reach: Of the rate at which neighbours are read.
    """
    worth = nbytes / reach + rows * _ROW_COST[team] * dtype.itemsize  # bytes, at the full rate
    busy = min(max(rows, 1) / figures.multiprocessors, 1.0)
    return figures.launch_seconds + worth / (figures.bytes_per_second * _OF_MEMORY_RATE[dtype.itemsize] * busy)


def has_packs(dtype: DType, shape: Sequence[int], *strides: Sequence[int]) -> bool:
    """Whether a row is a number of 16-byte packs of neighbours in every tensor; alignment is seen when addresses are known.

    Args:
        shape: Of one row's elements.
        strides: One sequence a tensor.
    """
    return len(shape) == 1 and all(step[0] == 1 for step in strides) and shape[0] * dtype.itemsize % 16 == 0


_Frame = tuple[tuple[int, ...], ...]  # extents, then strides of each tensor


def _split(problem: SoftmaxProblem) -> tuple[_Frame, _Frame]:
    """The rows and the elements of one: extents, then strides of each input and of the output."""
    tensors = (*problem.inputs, *problem.outputs)
    (output,) = problem.outputs
    inner = [1] if problem.mode is SoftmaxMode.CHANNEL else list(range(1, output.ndim))
    outer = [axis for axis in range(output.ndim) if axis not in inner]
    return (
        collapse([output.shape[a] for a in outer], *([t.strides[a] for a in outer] for t in tensors)),
        collapse([output.shape[a] for a in inner], *([t.strides[a] for a in inner] for t in tensors)),
    )


FORWARD = tuple(Softmax(team, "forward") for team in _ROWS_PER_BLOCK)
BACKWARD = tuple(Softmax(team, "backward") for team in _ROWS_PER_BLOCK)
