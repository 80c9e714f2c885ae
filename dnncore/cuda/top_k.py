"""The largest elements along a dimension: a block per row finds one after the other."""

from __future__ import annotations

import math
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
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import TopKProblem

__all__ = ["ALGORITHMS", "TopK"]

_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "values", "indices")),
    *((name, "<i8") for name in ("rows", "length", "count", "x_step", "values_step", "indices_step")),
    ("x_view", TENSOR_VIEW),
    ("values_view", TENSOR_VIEW),
    ("indices_view", TENSOR_VIEW),
)

_THREADS = 256
"""Most of a block."""

_EACH = 4
"""Elements of a row that a thread had better have at least, since each costs a round of every exchange between threads."""

_OF_MEMORY_RATE = 0.5
_ROUND_CLOCKS = 1188
"""Assumed: of the rate at which a row is read once, and what it takes a block to agree on the next element."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest elements along a dimension. Immutable."""

    name: str = "block_per_row"

    def offer(self, problem: TopKProblem, figures: DeviceFigures) -> Offer:
        """What it would take; it takes anything."""
        count = problem.values.shape[problem.axis]
        turns = -(-(problem.x.size // max(problem.x.shape[problem.axis], 1)) // (figures.multiprocessors * 8))
        rounds = turns * count * (_ROUND_CLOCKS / figures.clock_hz)
        seconds = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE) + rounds
        return Offer(figures.launch_seconds + seconds, partial(self._prepare, problem, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in FLOATING)

    def _prepare(self, problem: TopKProblem, figures: DeviceFigures) -> Calls:
        tensors = {"x": problem.x, "values": problem.values, "indices": problem.indices}
        length, outer = problem.x.shape[problem.axis], [axis for axis in range(problem.x.ndim) if axis != problem.axis]
        extents, *strides = collapse(
            [problem.x.shape[axis] for axis in outer],
            *([tensor.strides[axis] for axis in outer] for tensor in tensors.values()),
        )
        params = record(
            _PARAMS,
            rows=math.prod(extents),
            length=length,
            count=problem.values.shape[problem.axis],
            **{f"{name}_step": tensor.strides[problem.axis] for name, tensor in tensors.items()},
            **{f"{name}_view": view(extents, steps) for name, steps in zip(tensors, strides, strict=True)},
        )
        threads = min(max(-(-length // (32 * _EACH)), 1) * 32, _THREADS)
        blocks = blocks_for(figures, math.prod(extents), 1) if problem.values.size else 0
        return kernel_call(self._unit(problem.x.dtype), blocks, threads, params, in_order(*tensors))

    def _unit(self, dtype: DType) -> Unit:
        element = c_type(dtype)
        return generate("dnncore/top_k.cuh", f"top_k_{element}", f"top_k<{element}>", "TopKParams", _PARAMS, _THREADS)


ALGORITHMS = (TopK(),)
