"""Cross-entropy of logits with classes or probabilities, and its gradient: a warp or a block a row."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import ADDRESS, BLEND, FLOATING, c_type, generate_together, record, struct
from dnncore.cuda.softmax import has_packs, kept, threads_for
from dnncore.dtypes import DType
from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem

__all__ = ["BACKWARD", "FORWARD", "CrossEntropy"]

CrossEntropyProblem = CrossEntropyForwardProblem | CrossEntropyBackwardProblem

_KERNELS = {
    "forward": {"warp_per_row": "WarpPerRow", "block_per_row": "BlockPerRow"},
    "backward": {
        "warp_per_row": "WarpPerRow, true",
        "block_per_row": "BlockPerRow, true",
        "block_per_row_streamed": "BlockPerRow, false",
    },
}
"""Template arguments of each; backward, those that keep a row in registers and one that does not. Forward needs a row only once."""

_THREADS = {
    "forward": {"warp_per_row": 128, "block_per_row": 256},
    "backward": {"warp_per_row": 128, "block_per_row": 1024, "block_per_row_streamed": 384},
}
"""Most threads a block; a block that has a row takes as many as the row needs."""

_ROWS_PER_BLOCK = {"warp_per_row": 128 // 32, "block_per_row": 1}

_MORE_THREADS = {"forward": {"warp_per_row": 1024, "block_per_row": 1024}, "backward": {"warp_per_row": 768}}
"""Threads a block that these are compiled for, but for float64, which has 512: 1024 have 64 registers each, 768 have 80, where the
compiler, left alone, takes twice as many."""

_NOTHING_IGNORED = -1
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("labels", ADDRESS),
    ("output", ADDRESS),
    ("kept_part", "<f8"),
    ("shared_part", "<f8"),
    ("rows", "<i8"),
    ("classes", "<i8"),
    ("ignored", "<i8"),
    ("x_strides", "<i8", 2),
    ("label_strides", "<i8", 2),
    ("output_strides", "<i8", 2),
    ("probabilities", "<i4"),
    ("wide_loss", "<i4"),
    ("has_packs", "<i4"),
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
        classes, most = problem.x.shape[1], 32 * kept(problem.x.dtype)
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
        ignored, smoothing = problem.cross_entropy.ignore_index, problem.cross_entropy.label_smoothing
        matrices = [tensor for tensor in (problem.x, problem.labels, output) if tensor.ndim == 2]
        params = record(
            _PARAMS,
            kept_part=1.0 - smoothing,
            shared_part=smoothing / max(classes, 1),
            rows=rows,
            classes=classes,
            ignored=_NOTHING_IGNORED if ignored is None else ignored,
            x_strides=problem.x.strides,
            label_strides=(*problem.labels.strides, 0)[:2],
            output_strides=(*output.strides, 0)[:2],
            probabilities=problem.labels.ndim == 2,
            wide_loss=output.dtype is problem.x.dtype.compute,
            has_packs=has_packs(problem.x.dtype, (classes,), *(tensor.strides[1:] for tensor in matrices)),
        )
        kernel, limits = self.name, _THREADS[self.direction]
        if self.direction == "backward" and classes > limits[self.name] * kept(problem.x.dtype):
            kernel = "block_per_row_streamed"
        threads = limits[kernel]
        if self.name == "block_per_row":
            threads = threads_for(classes, problem.x.dtype, threads)
        grid = (blocks_for(rows, _ROWS_PER_BLOCK[self.name]) if output.size else 0, 1, 1)
        function = device.kernel(self._unit(problem.x.dtype, kernel))
        return single(function, grid, (threads, 1, 1), params, ("x", "labels"), ("output",))

    def _unit(self, dtype: DType, kernel: str) -> Unit:
        """One of _KERNELS; all of a direction, dtype and number of threads share a source."""
        kernels = _KERNELS[self.direction]
        threads = {name: self._compiled_threads(dtype, name) for name in kernels}
        entries = {
            name: f"cross_entropy_{self.direction}_{name}_{c_type(dtype)}"
            for name in kernels
            if threads[name] == threads[kernel]
        }
        functions = {
            entry: f"cross_entropy_{self.direction}<{c_type(dtype)}, {kernels[name]}>"
            for name, entry in entries.items()
        }
        header = "dnncore/cross_entropy.cuh"
        return generate_together(header, functions, "CrossEntropyParams", _PARAMS, threads[kernel])[entries[kernel]]

    def _compiled_threads(self, dtype: DType, kernel: str) -> int:
        if kernel not in _MORE_THREADS[self.direction]:
            return _THREADS[self.direction][kernel]
        return 512 if dtype is DType.FLOAT64 else _MORE_THREADS[self.direction][kernel]


FORWARD = tuple(CrossEntropy(team, "forward") for team in _ROWS_PER_BLOCK)
BACKWARD = tuple(CrossEntropy(team, "backward") for team in _ROWS_PER_BLOCK)
