"""Softmax, forward and backward: a thread, a warp or a block for what is normalised together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
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
from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.dtypes import DType
from dnncore.problems import SoftmaxBackwardProblem, SoftmaxForwardProblem

__all__ = ["BACKWARD", "FORWARD", "Softmax", "has_packs", "kept", "threads_for"]

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
"""Most threads a block; a block that has a row takes as many as the row needs."""

_ROWS_PER_BLOCK = {"thread_per_row": 128, "warp_per_row": 4, "block_per_row": 1}

_SHORT = 32
"""Rows up to this long would leave much of a warp idle."""

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
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: SoftmaxProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        if self.name == "block_per_row":
            return None
        rows, elements = _split(problem)
        length = math.prod(elements[0])
        if self.name == "warp_per_row":
            return (
                None
                if self._keeps(problem, elements)
                else f"rows of {length} elements do not fit in a warp's registers"
            )
        side_by_side = all(step[-1] == 1 for step in rows[1:]) and rows[0][-1] >= _SHORT
        if length <= _SHORT or side_by_side:
            return None
        return f"rows of {length} elements are longer than {_SHORT} and do not lie side by side"

    def workspace_bytes(self, problem: SoftmaxProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """Those of _KERNELS for each dtype."""
        kernels = [kernel for kernel in _KERNELS if kernel.startswith(self.name)]
        return tuple(self._unit(dtype, kernel) for dtype in FLOATING for kernel in kernels)

    def prepare(self, problem: SoftmaxProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        (output,) = problem.outputs
        rows, elements = _split(problem)
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
        blocks = blocks_for(int(params["rows"]), _ROWS_PER_BLOCK[self.name]) if output.size else 0
        kernel = self.name if self._keeps(problem, elements) else f"{self.name}_streamed"
        threads, shared_bytes = _THREADS[kernel], 0
        if self.name == "block_per_row":
            threads = threads_for(int(params["length"]), output.dtype, threads)
            if self.direction == "backward":  # what each thread keeps of dy
                shared_bytes = threads * kept(output.dtype) * output.dtype.itemsize
        inputs = ("input_0", "input_1")[: len(problem.inputs)]
        return single(
            device.kernel(self._unit(output.dtype, kernel)),
            (blocks, 1, 1),
            (threads, 1, 1),
            params,
            inputs,
            ("output",),
            shared_bytes,
        )

    def _keeps(self, problem: SoftmaxProblem, elements: tuple[tuple[int, ...], ...]) -> bool:
        """Whether a row stays in registers: its elements, as `_split` gives them, are few and in one dimension."""
        members = _THREADS[self.name] // _ROWS_PER_BLOCK[self.name]
        return len(elements[0]) == 1 and elements[0][0] <= members * kept(problem.outputs[0].dtype)

    def _unit(self, dtype: DType, kernel: str) -> Unit:
        """One of _KERNELS; all of a direction, dtype and number of threads a block share a source."""
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


def has_packs(dtype: DType, shape: Sequence[int], *strides: Sequence[int]) -> bool:
    """Whether a row is a number of 16-byte packs of neighbours in every tensor; alignment is seen when addresses are known.

    Args:
        shape: Of one row's elements.
        strides: One sequence a tensor.
    """
    return len(shape) == 1 and all(step[0] == 1 for step in strides) and shape[0] * dtype.itemsize % 16 == 0


def _split(problem: SoftmaxProblem) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
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
