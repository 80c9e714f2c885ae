"""Softmax, forward and backward: a thread, a warp or a block for what is normalised together."""

from __future__ import annotations

import math
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

__all__ = ["BACKWARD", "FORWARD", "Softmax"]

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
)

_THREADS = {"thread_per_row": 128, "warp_per_row": 128, "block_per_row": 256}
_ROWS_PER_BLOCK = {"thread_per_row": 128, "warp_per_row": 4, "block_per_row": 1}
_KEPT = {"thread_per_row": 32, "warp_per_row": 32 * 32, "block_per_row": 256 * 16}
"""Longest row that fits in a team's registers: its members times kKept in softmax_row.cuh."""

_KERNELS = {
    "thread_per_row": "ThreadPerRow, true",
    "thread_per_row_streamed": "ThreadPerRow, false",
    "warp_per_row": "WarpPerRow, true",
    "block_per_row": "BlockPerRow, true",
    "block_per_row_streamed": "BlockPerRow, false",
}
"""Template arguments of those that keep a row in registers, and of those that do not."""

_SHORT = _KEPT["thread_per_row"]
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
            return None if self._keeps(elements) else f"rows of {length} elements do not fit in a warp's registers"
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
        )
        # The output's views come last, whatever the number of inputs.
        for place, row_step, element_step in zip(
            (*range(len(problem.inputs)), 2), row_strides, element_strides, strict=True
        ):
            params["row_views"][place] = view(row_shape, row_step)
            params["element_views"][place] = view(element_shape, element_step)
        blocks = blocks_for(int(params["rows"]), _ROWS_PER_BLOCK[self.name]) if output.size else 0
        kernel = device.kernel(
            self._unit(output.dtype, self.name if self._keeps(elements) else f"{self.name}_streamed")
        )
        inputs = ("input_0", "input_1")[: len(problem.inputs)]
        return single(kernel, (blocks, 1, 1), (_THREADS[self.name], 1, 1), params, inputs, ("output",))

    def _keeps(self, elements: tuple[tuple[int, ...], ...]) -> bool:
        """Whether a row stays in registers: its elements, as `_split` gives them, are few and in one dimension."""
        return len(elements[0]) == 1 and elements[0][0] <= _KEPT[self.name]

    def _unit(self, dtype: DType, kernel: str) -> Unit:
        """One of _KERNELS; all of a direction, dtype and number of threads a block share a source."""
        threads = _THREADS[self.name]
        entries = {
            name: f"softmax_{self.direction}_{name}_{c_type(dtype)}"
            for name in _KERNELS
            if _THREADS[name.removesuffix("_streamed")] == threads
        }
        functions = {
            entry: f"softmax_{self.direction}<{c_type(dtype)}, {_KERNELS[name]}>" for name, entry in entries.items()
        }
        units = generate_together("dnncore/softmax.cuh", functions, "SoftmaxParams", _PARAMS, threads)
        return units[entries[kernel]]


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


FORWARD = tuple(Softmax(team, "forward") for team in _THREADS)
BACKWARD = tuple(Softmax(team, "backward") for team in _THREADS)
