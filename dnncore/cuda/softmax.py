"""Softmax, forward and backward: a block or a thread for what is normalised together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    FULL_PRECISION,
    TENSOR_VIEW,
    c_type,
    collapse,
    generate,
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
)

_SHORT = 32
"""Rows up to this long would leave most of a block idle."""

_FORWARD_KINDS = {
    SoftmaxAlgorithm.FAST: "dnncore::SoftmaxKind::kFast",
    SoftmaxAlgorithm.ACCURATE: "dnncore::SoftmaxKind::kAccurate",
    SoftmaxAlgorithm.LOG: "dnncore::SoftmaxKind::kLog",
}
_BACKWARD_KINDS = {SoftmaxAlgorithm.FAST: "false", SoftmaxAlgorithm.ACCURATE: "false", SoftmaxAlgorithm.LOG: "true"}


@dataclass(frozen=True, slots=True)
class Softmax:
    """One direction of softmax. Immutable.

    Args:
        name: "thread_per_row", for short rows and for rows that lie side by side, or "block_per_row".
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
        side_by_side = all(step[-1] == 1 for step in rows[1:]) and rows[0][-1] >= _SHORT
        if length <= _SHORT or side_by_side:
            return None
        return f"rows of {length} elements are longer than {_SHORT} and do not lie side by side"

    def workspace_bytes(self, problem: SoftmaxProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each softmax algorithm that differs, and dtype."""
        return tuple(dict.fromkeys(self._unit(a, dtype) for a in SoftmaxAlgorithm for dtype in FULL_PRECISION))

    def prepare(self, problem: SoftmaxProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        (output,) = problem.outputs
        (row_shape, *row_strides), (element_shape, *element_strides) = _split(problem)
        params = record(_PARAMS, rows=math.prod(row_shape), length=math.prod(element_shape))
        # The output's views come last, whatever the number of inputs.
        for place, row_step, element_step in zip(
            (*range(len(problem.inputs)), 2), row_strides, element_strides, strict=True
        ):
            params["row_views"][place] = view(row_shape, row_step)
            params["element_views"][place] = view(element_shape, element_step)
        threads = _threads(self.name)
        per_block = threads if self.name == "thread_per_row" else 1
        blocks = blocks_for(int(params["rows"]), per_block) if output.size else 0
        kernel = device.kernel(self._unit(problem.algorithm, output.dtype))
        inputs = ("input_0", "input_1")[: len(problem.inputs)]
        return single(kernel, (blocks, 1, 1), (threads, 1, 1), params, inputs, ("output",))

    def _unit(self, algorithm: SoftmaxAlgorithm, dtype: DType) -> Unit:
        kind = (_FORWARD_KINDS if self.direction == "forward" else _BACKWARD_KINDS)[algorithm]
        team = "".join(word.capitalize() for word in self.name.split("_"))
        short_kind = kind.rsplit(":", 1)[-1].lower()
        return generate(
            header="dnncore/softmax.cuh",
            entry=f"softmax_{self.direction}_{self.name}_{short_kind}_{c_type(dtype)}",
            function=f"softmax_{self.direction}<{c_type(dtype)}, {kind}, dnncore::{team}>",
            struct_name="SoftmaxParams",
            dtype=_PARAMS,
            threads=_threads(self.name),
        )


def _threads(name: str) -> int:
    return 128 if name == "thread_per_row" else 256


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


FORWARD = (Softmax("thread_per_row", "forward"), Softmax("block_per_row", "forward"))
BACKWARD = (Softmax("thread_per_row", "backward"), Softmax("block_per_row", "backward"))
