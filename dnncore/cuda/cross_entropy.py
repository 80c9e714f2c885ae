"""Cross-entropy of logits with classes or probabilities, and its gradient: a warp or a block a row."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import ADDRESS, BLEND, FLOATING, c_type, generate_together, record, struct
from dnncore.dtypes import DType
from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem

__all__ = ["BACKWARD", "FORWARD", "CrossEntropy"]

CrossEntropyProblem = CrossEntropyForwardProblem | CrossEntropyBackwardProblem

_THREADS = 256
_ROWS_PER_BLOCK = {"warp_per_row": _THREADS // 32, "block_per_row": 1}
_KEPT = {"warp_per_row": 32 * 32, "block_per_row": _THREADS * 16}
"""Longest row that fits in a team's registers: its members times kKept in softmax_row.cuh."""

_KERNELS = {
    "forward": {"warp_per_row": "WarpPerRow", "block_per_row": "BlockPerRow"},
    "backward": {
        "warp_per_row": "WarpPerRow, true",
        "block_per_row": "BlockPerRow, true",
        "block_per_row_streamed": "BlockPerRow, false",
    },
}
"""Template arguments of each; backward, those that keep a row in registers and one that does not. Forward needs a row only once."""

_NOTHING_IGNORED = -1
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("labels", ADDRESS),
    ("output", ADDRESS),
    ("smoothing", "<f8"),
    ("rows", "<i8"),
    ("classes", "<i8"),
    ("ignored", "<i8"),
    ("x_strides", "<i8", 2),
    ("label_strides", "<i8", 2),
    ("output_strides", "<i8", 2),
    ("probabilities", "<i4"),
    ("wide_loss", "<i4"),
)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """One direction of cross-entropy. Immutable.

    Args:
        name: "warp_per_row", for rows that fit in a warp's registers, or "block_per_row".
        direction: "forward" or "backward".
    """

    name: str
    direction: str
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: CrossEntropyProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        classes, most = problem.x.shape[1], _KEPT[self.name]
        if self.name == "block_per_row" or classes <= most:
            return None
        return f"{classes} classes are more than {most}"

    def workspace_bytes(self, problem: CrossEntropyProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """Those of _KERNELS for each dtype."""
        kernels = [kernel for kernel in _KERNELS[self.direction] if kernel.startswith(self.name)]
        return tuple(self._unit(dtype, kernel) for dtype in FLOATING for kernel in kernels)

    def prepare(self, problem: CrossEntropyProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        (output,) = problem.outputs
        rows, classes = problem.x.shape
        ignored = problem.cross_entropy.ignore_index
        params = record(
            _PARAMS,
            smoothing=problem.cross_entropy.label_smoothing,
            rows=rows,
            classes=classes,
            ignored=_NOTHING_IGNORED if ignored is None else ignored,
            x_strides=problem.x.strides,
            label_strides=(*problem.labels.strides, 0)[:2],
            output_strides=(*output.strides, 0)[:2],
            probabilities=problem.labels.ndim == 2,
            wide_loss=output.dtype is problem.x.dtype.compute,
        )
        streamed = self.direction == "backward" and classes > _KEPT[self.name]
        kernel = device.kernel(self._unit(problem.x.dtype, f"{self.name}_streamed" if streamed else self.name))
        grid = (blocks_for(rows, _ROWS_PER_BLOCK[self.name]) if output.size else 0, 1, 1)
        return single(kernel, grid, (_THREADS, 1, 1), params, ("x", "labels"), ("output",))

    def _unit(self, dtype: DType, kernel: str) -> Unit:
        """One of _KERNELS; all of a direction and dtype share a source."""
        entries = {name: f"cross_entropy_{self.direction}_{name}_{c_type(dtype)}" for name in _KERNELS[self.direction]}
        functions = {
            entry: f"cross_entropy_{self.direction}<{c_type(dtype)}, {_KERNELS[self.direction][name]}>"
            for name, entry in entries.items()
        }
        units = generate_together("dnncore/cross_entropy.cuh", functions, "CrossEntropyParams", _PARAMS, _THREADS)
        return units[entries[kernel]]


FORWARD = tuple(CrossEntropy(team, "forward") for team in _KEPT)
BACKWARD = tuple(CrossEntropy(team, "backward") for team in _KEPT)
