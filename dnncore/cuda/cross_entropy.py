"""Cross-entropy of logits with integer labels, and its gradient: a warp a row."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import ADDRESS, BLEND, FULL_PRECISION, c_type, generate, record, struct
from dnncore.dtypes import DType
from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem

__all__ = ["BACKWARD", "FORWARD", "CrossEntropy"]

CrossEntropyProblem = CrossEntropyForwardProblem | CrossEntropyBackwardProblem

_THREADS = 128
_ROWS_PER_BLOCK = _THREADS // 32
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("labels", ADDRESS),
    ("output", ADDRESS),
    ("rows", "<i8"),
    ("classes", "<i8"),
    ("x_strides", "<i8", 2),
    ("label_stride", "<i8"),
    ("output_strides", "<i8", 2),
)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """One direction of cross-entropy. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "warp_per_row"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: CrossEntropyProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """It supports everything."""
        return None

    def workspace_bytes(self, problem: CrossEntropyProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in FULL_PRECISION)

    def prepare(self, problem: CrossEntropyProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        (output,) = problem.outputs
        rows, classes = problem.x.shape
        params = record(
            _PARAMS,
            rows=rows,
            classes=classes,
            x_strides=problem.x.strides,
            label_stride=problem.labels.strides[0],
            output_strides=(*output.strides, 0)[:2],
        )
        kernel = device.kernel(self._unit(output.dtype))
        grid = (blocks_for(rows, _ROWS_PER_BLOCK) if output.size else 0, 1, 1)
        return single(kernel, grid, (_THREADS, 1, 1), params, ("x", "labels"), ("output",))

    def _unit(self, dtype: DType) -> Unit:
        return generate(
            header="dnncore/cross_entropy.cuh",
            entry=f"cross_entropy_{self.direction}_{c_type(dtype)}",
            function=f"cross_entropy_{self.direction}<{c_type(dtype)}>",
            struct_name="CrossEntropyParams",
            dtype=_PARAMS,
            threads=_THREADS,
        )


FORWARD = (CrossEntropy("forward"),)
BACKWARD = (CrossEntropy("backward"),)
