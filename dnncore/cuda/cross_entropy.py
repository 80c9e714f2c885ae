"""Cross-entropy of logits with classes or probabilities, and its gradient: a warp or a block per row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, FLOATING, c_type, generate_together, record, struct
from dnncore.cuda.softmax import has_packs, kept, seconds_for, threads_for
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
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
"""Most threads per block; a block that has a row takes as many as the row needs."""

_ROWS_PER_BLOCK = {"warp_per_row": 128 // 32, "block_per_row": 1}

_MORE_THREADS = {"forward": {"warp_per_row": 1024, "block_per_row": 1024}, "backward": {"warp_per_row": 768}}
"""Threads per block that these are compiled for, but for float64, which has 512: 1024 have 64 registers each, 768 have 80, where
the compiler, left alone, takes twice as many."""

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

    def offer(self, problem: CrossEntropyProblem, figures: DeviceFigures) -> Offer | str:
        """What it would take; or the reason why it cannot."""
        x, (rows, classes) = problem.x, problem.x.shape
        most = 32 * kept(x.dtype)
        if self.name == "warp_per_row" and classes > most:
            return f"{classes} classes are more than {most}"
        kernel = self._kernel(classes, x.dtype)
        again = x.size * x.dtype.itemsize if kernel.endswith("streamed") else 0
        seconds = seconds_for(figures, self.name, rows, x.dtype, operand_bytes(problem) + again)
        return Offer(seconds, partial(self._prepare, problem, figures, kernel))

    def units(self) -> tuple[Unit, ...]:
        """Those of _KERNELS for each dtype."""
        kernels = [kernel for kernel in _KERNELS[self.direction] if kernel.startswith(self.name)]
        return tuple(self._unit(dtype, kernel) for dtype in FLOATING for kernel in kernels)

    def _kernel(self, classes: int, dtype: DType) -> str:
        """Which of _KERNELS it takes."""
        if self.direction == "backward" and classes > _THREADS[self.direction][self.name] * kept(dtype):
            return "block_per_row_streamed"
        return self.name

    def _prepare(self, problem: CrossEntropyProblem, figures: DeviceFigures, kernel: str) -> Calls:
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
        threads = _THREADS[self.direction][kernel]
        if self.name == "block_per_row":
            threads = threads_for(classes, problem.x.dtype, threads)
        blocks = blocks_for(figures, rows, _ROWS_PER_BLOCK[self.name]) if output.size else 0
        unit = self._unit(problem.x.dtype, kernel)
        return kernel_call(unit, blocks, threads, params, in_order("x", "labels", "output"))

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
