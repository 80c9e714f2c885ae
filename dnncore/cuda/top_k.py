"""The largest elements along a dimension: of few candidates, which a warp or a block per row finds, or one after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

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

__all__ = ["ALGORITHMS", "Candidates", "TopK"]

_OPERANDS = ("x", "values", "indices")
_WARP = 32
_THREADS = 256
"""Most of a block; kTopKOfRow in top_k_candidates.cuh."""

_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in _OPERANDS),
    *((name, "<i8") for name in ("rows", "length", "count", "x_step", "values_step", "indices_step")),
    ("x_view", TENSOR_VIEW),
    ("values_view", TENSOR_VIEW),
    ("indices_view", TENSOR_VIEW),
)

_EACH = 4
"""Elements of a row that a thread had better have at least, since each costs a round of every exchange between threads."""

_OF_MEMORY_RATE = 0.5
_ROUND_CLOCKS = 1188
"""Assumed: of the rate at which a row is read once, and what it takes a block to agree on the next element."""


_FEW = 32
"""Elements that may be wanted of candidates: as many as a warp has lanes."""

_KEPT = 32
"""Elements of a row that a thread keeps; kTopKKept in top_k_candidates.cuh."""

_WARPS_THREADS = 128
"""Of a block whose warps have a row each; kTopKThreads there."""

_OF_MEMORY_RATE_OF_CANDIDATES = 0.6
_CLOCKS_OF_CANDIDATES = {"warp_per_row": 300, "block_of_candidates": 1500}
"""Assumed, not measured on a GPU: of the rate at which a row is read once, and what a row takes beside its loads."""

_DTYPES_OF_CANDIDATES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Few of the largest elements along a dimension, of those that are not below a bound. Immutable.

    Args:
        name: "warp_per_row", of rows that a warp keeps in registers, or "block_of_candidates", of any.
    """

    name: str

    def offer(self, problem: TopKProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        length, count = problem.x.shape[problem.axis], problem.values.shape[problem.axis]
        if problem.x.dtype not in _DTYPES_OF_CANDIDATES:
            return f"x is {problem.x.dtype.value}; elements are compared as integers of 32 bits"
        if count > _FEW:
            return f"{count} elements are wanted; at most {_FEW}"
        if self._is_of_warps and length > _WARP * _KEPT:
            return f"rows have {length} elements; a warp keeps {_WARP * _KEPT}"
        at_once = figures.multiprocessors * (32 if self._is_of_warps else 6)
        turns = -(-(problem.x.size // max(length, 1)) // at_once)
        clocks = turns * (_CLOCKS_OF_CANDIDATES[self.name] + 30 * count)
        seconds = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE_OF_CANDIDATES)
        prepare = partial(self._prepare, problem, figures)
        return Offer(figures.launch_seconds + seconds + clocks / figures.clock_hz, prepare)

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in _DTYPES_OF_CANDIDATES)

    @property
    def _is_of_warps(self) -> bool:
        return self.name == "warp_per_row"

    def _prepare(self, problem: TopKProblem, figures: DeviceFigures) -> Calls:
        params, rows = _params(problem)
        rows_of_block, threads = (_WARPS_THREADS // _WARP, _WARPS_THREADS) if self._is_of_warps else (1, _THREADS)
        blocks = blocks_for(figures, rows, rows_of_block) if problem.values.size else 0
        return kernel_call(self._unit(problem.x.dtype), blocks, threads, params, in_order(*_OPERANDS))

    def _unit(self, dtype: DType) -> Unit:
        element, of_warp = c_type(dtype), str(self._is_of_warps).lower()
        return generate(
            header="dnncore/top_k_candidates.cuh",
            entry=f"top_k_{self.name}_{element}",
            function=f"top_k_candidates<{element}, {of_warp}>",
            struct_name="TopKParams",
            dtype=_PARAMS,
            threads=_WARPS_THREADS if self._is_of_warps else _THREADS,
        )


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
        params, rows = _params(problem)
        length = problem.x.shape[problem.axis]
        threads = min(max(-(-length // (_WARP * _EACH)), 1) * _WARP, _THREADS)
        blocks = blocks_for(figures, rows, 1) if problem.values.size else 0
        return kernel_call(self._unit(problem.x.dtype), blocks, threads, params, in_order(*_OPERANDS))

    def _unit(self, dtype: DType) -> Unit:
        element = c_type(dtype)
        return generate("dnncore/top_k.cuh", f"top_k_{element}", f"top_k<{element}>", "TopKParams", _PARAMS, _THREADS)


def _params(problem: TopKProblem) -> tuple[np.ndarray, int]:
    """The struct without addresses, and how many rows there are."""
    tensors = dict(zip(_OPERANDS, (problem.x, problem.values, problem.indices), strict=True))
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
    return params, math.prod(extents)


ALGORITHMS = (Candidates("warp_per_row"), Candidates("block_of_candidates"), TopK())
