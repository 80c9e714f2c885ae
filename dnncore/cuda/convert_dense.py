"""Transforms between two element types of tensors that lie alike and without gaps.

Between int8 and fp16 where a net goes over to whole numbers, and back; between fp32 and 16 bits for the weights of a step under
autocast, and their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.elementwise import layout_of
from dnncore.cuda.params import ADDRESS, BLEND, c_type, generate, record, struct
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import AddProblem

__all__ = ["ConvertDense"]

_THREADS = 128
_PACK_BYTES = 16
"""Of the narrower type, that a thread takes at a time; sizeof(Pack<T>) in pack.cuh."""

_WIDER = ((DType.INT8, DType.FLOAT16), (DType.FLOAT16, DType.FLOAT32), (DType.BFLOAT16, DType.FLOAT32))
_PAIRS = (*_WIDER, *((wide, narrow) for narrow, wide in _WIDER))
_PARAMS = struct(*BLEND, ("a", ADDRESS), ("c", ADDRESS), ("size", "<i8"))

_OF_MEMORY_RATE = 0.85
"""Assumed: as `elementwise` for tensors without gaps."""


@dataclass(frozen=True, slots=True)
class ConvertDense:
    """c = alpha * a + beta * c, 8 or 16 neighbours per thread. Immutable."""

    name: str = "convert_dense"

    def offer(self, problem: AddProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        if (problem.a.dtype, problem.c.dtype) not in _PAIRS:
            return f"a is {problem.a.dtype.value}, c {problem.c.dtype.value}; it is for {_names()}"
        layout = layout_of(problem)
        if len(layout.extents) != 1 or any(strides != (1,) for strides in map(tuple, layout.strides)):
            return "the tensors have gaps, or lie differently"
        seconds = layout.nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return Offer(figures.launch_seconds + seconds, partial(_prepare, problem, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each pair of dtypes."""
        return tuple(_unit(*pair) for pair in _PAIRS)


def _names() -> str:
    return ", ".join(f"{narrow.value} and {wide.value}" for narrow, wide in _WIDER)


def _prepare(problem: AddProblem, figures: DeviceFigures) -> Calls:
    params = record(_PARAMS, size=problem.c.size)
    lanes = _PACK_BYTES // min(problem.a.dtype.itemsize, problem.c.dtype.itemsize)
    blocks = blocks_for(figures, -(-problem.c.size // lanes), _THREADS)
    return kernel_call(_unit(problem.a.dtype, problem.c.dtype), blocks, _THREADS, params, in_order("a", "c"))


@cache
def _unit(a: DType, c: DType) -> Unit:
    return generate(
        header="dnncore/convert_dense.cuh",
        entry=f"convert_dense_{c_type(a)}_{c_type(c)}",
        function=f"convert_dense<{c_type(a)}, {c_type(c)}>",
        struct_name="ConvertDenseParams",
        dtype=_PARAMS,
        threads=_THREADS,
    )
