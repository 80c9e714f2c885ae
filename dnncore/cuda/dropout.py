"""Dropout, which is its own adjoint."""

from __future__ import annotations

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
    generate_together,
    record,
    struct,
    view,
)
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import DropoutProblem

__all__ = ["ALGORITHMS", "Dropout"]

_THREADS = 128
_PACK_BYTES = 16
_COUNTER = 4
"""Elements that draw from one counter."""

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("state", ADDRESS),
    ("y", ADDRESS),
    ("size", "<i8"),
    ("threshold", "<u8"),
    ("scale", "<f8"),
    ("x_view", TENSOR_VIEW),
    ("y_view", TENSOR_VIEW),
)
_OF_MEMORY_RATE = {"contiguous": 0.94, "strided": 0.35}
"""The first measured on an H200 with elements of 2 and 4 bytes; the second assumed: a division per dimension and element."""


@dataclass(frozen=True, slots=True)
class Dropout:
    """y = x / (1 - probability) or 0. Immutable.

    Args:
        name: "contiguous", 16 bytes at a time; or "strided", which takes anything.
    """

    name: str

    def offer(self, problem: DropoutProblem, figures: DeviceFigures) -> Offer | str:
        """What it would take; or the reason why it cannot."""
        if self.name == "contiguous" and not (problem.x.is_row_major and problem.y.is_row_major):
            return "x and y are not both row-major"
        rate = figures.bytes_per_second * _OF_MEMORY_RATE[self.name]
        return Offer(figures.launch_seconds + operand_bytes(problem) / rate, partial(self._prepare, problem, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in FLOATING)

    def _prepare(self, problem: DropoutProblem, figures: DeviceFigures) -> Calls:
        x, y = problem.x, problem.y
        params = record(
            _PARAMS,
            size=x.size,
            threshold=problem.threshold,
            scale=problem.scale,
            x_view=view(x.shape, x.strides),
            y_view=view(y.shape, y.strides),
        )
        blocks = {
            "contiguous": -(-x.size // (_THREADS * _at_once(x.dtype))),
            "strided": blocks_for(figures, x.size, _THREADS),
        }
        return kernel_call(self._unit(x.dtype), blocks[self.name], _THREADS, params, in_order("x", "state", "y"))

    def _unit(self, dtype: DType) -> Unit:
        entries = {name: f"dropout_{name}_{c_type(dtype)}" for name in _OF_MEMORY_RATE}
        functions = {entry: f"dropout_{name}<{c_type(dtype)}>" for name, entry in entries.items()}
        units = generate_together("dnncore/dropout.cuh", functions, "DropoutParams", _PARAMS, _THREADS)
        return units[entries[self.name]]


def _at_once(dtype: DType) -> int:
    """Elements of a thread that takes whole tensors: kGroup times kAtOnce in dropout.cuh."""
    return max(_PACK_BYTES // dtype.itemsize, _COUNTER) * (1 if dtype is DType.FLOAT64 else 2)


ALGORITHMS = tuple(Dropout(name) for name in _OF_MEMORY_RATE)
