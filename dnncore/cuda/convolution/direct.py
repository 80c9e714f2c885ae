"""Convolution from its definition, in double precision: whatever is legal, and the reference on the device for large shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from dnncore.backend import Offer
from dnncore.bounds import Bounded
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.convolution.operands import is_wide
from dnncore.cuda.geometry import GEOMETRY, MAX_SPATIAL, geometry, spatial, taps
from dnncore.cuda.params import ADDRESS, BLEND, ELEMENT_TYPES, FLOATING, c_type, generate, record, struct
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["DIRECT", "DirectConvolution"]

_FEW_SPATIAL = 2
_THREADS = 128

# Of the estimate [not measured, and cautious: it comes behind what was measured]: the shares of the multiply-adds in double
# precision and of the memory's rate that are left beside 64-bit addresses and reads of single elements; the cycles that a thread
# waits for each tap's place and for each product's operands; and what a launch takes beside all that.
_OF_PRODUCTS = 0.01
_OF_MEMORY_RATE = 0.2
_TAP_CYCLES, _PRODUCT_CYCLES = 600, 200
_LAUNCHES = 10

_STRIDES = struct(("outer", "<i8"), ("inner", "<i8"), ("spatial", "<i8", MAX_SPATIAL))
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("w", ADDRESS),
    ("y", ADDRESS),
    ("x_strides", _STRIDES),
    ("w_strides", _STRIDES),
    ("y_strides", _STRIDES),
    ("geometry", GEOMETRY),
    ("batch", "<i8"),
    ("channels", "<i8"),
    ("filters", "<i8"),
    ("groups", "<i8"),
    ("w_offset", "<i8"),
    ("count", "<i8"),
    ("type", "<i4"),
    ("output_type", "<i4"),
)

_FIELDS = {
    Direction.FORWARD: ("x", "w", "y"),
    Direction.BACKWARD_DATA: ("w", "y", "x"),
    Direction.BACKWARD_FILTER: ("x", "y", "w"),
}


@cache
def _unit(direction: Direction, dtype: DType | None) -> Unit:
    """The kernel for up to two spatial dimensions of a dtype; None: for any number, any dtype, and an output in another."""
    elements, few = ("Untyped", MAX_SPATIAL) if dtype is None else (f"Typed<{c_type(dtype)}>", _FEW_SPATIAL)
    return generate(
        header="dnncore/convolution/direct.cuh",
        entry=f"convolution_direct_{direction.value}_{'any' if dtype is None else c_type(dtype)}",
        function=f"direct::{direction.value}<direct::{elements}, {few}>",
        struct_name="direct::Params",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def _strides(strides: Sequence[int]) -> np.ndarray:
    outer, inner, *places = strides
    return record(_STRIDES, outer=outer, inner=inner, spatial=spatial(places, 0))


def _params(problem: ConvolutionProblem) -> np.ndarray:
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    (output,) = problem.outputs
    w_offset, w_spatial = taps(w.shape[2:], w.strides[2:], conv)
    return record(
        _PARAMS,
        x_strides=_strides(x.strides),
        w_strides=_strides((*w.strides[:2], *w_spatial)),
        y_strides=_strides(y.strides),
        geometry=geometry(x.shape[2:], w.shape[2:], y.shape[2:], conv),
        batch=x.shape[0],
        channels=w.shape[1],
        filters=w.shape[0] // conv.groups,
        groups=conv.groups,
        w_offset=w_offset,
        count=output.size,
        type=ELEMENT_TYPES.index(x.dtype),
        output_type=ELEMENT_TYPES.index(output.dtype),
    )


@dataclass(frozen=True)
class DirectConvolution(Bounded):
    """One thread per element of y or dx, one block per element of dw; no workspace. Immutable."""

    name: str = "direct"

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        by_dtype = [_unit(direction, dtype) for direction in Direction for dtype in FLOATING]
        return (*by_dtype, _unit(Direction.FORWARD, DType.INT8), *(_unit(direction, None) for direction in Direction))

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What all products take."""
        return problem.macs / (figures.products_per_second(Maths.FP64) * _OF_PRODUCTS)

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer:
        """What it takes; it computes everything that is legal."""
        return Offer(_seconds(problem, figures), partial(_calls, problem, figures), math="fp64")


def _seconds(problem: ConvolutionProblem, figures: DeviceFigures) -> float:
    """Time of all products, or of the tensors, on a busy device; or of what one thread adds up where threads are few."""
    x, w, y = problem.x, problem.w, problem.y
    if problem.direction is Direction.BACKWARD_FILTER:
        places = y.shape[0] * math.prod(y.shape[2:])
        cycles = -(-places // _THREADS) * (_TAP_CYCLES + _PRODUCT_CYCLES)
    else:
        channels = w.shape[1] if problem.direction is Direction.FORWARD else w.shape[0] // problem.convolution.groups
        cycles = math.prod(w.shape[2:]) * (_TAP_CYCLES + channels * _PRODUCT_CYCLES)
    busy = problem.macs / (figures.products_per_second(Maths.FP64) * _OF_PRODUCTS)
    memory = (x.nbytes + w.nbytes + y.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
    return _LAUNCHES * figures.launch_seconds + max(busy, memory, cycles / figures.clock_hz)


def _calls(problem: ConvolutionProblem, figures: DeviceFigures) -> Calls:
    (output,) = problem.outputs
    is_typed = problem.convolution.spatial_ndim <= _FEW_SPATIAL and not is_wide(problem)
    dtype = problem.x.dtype if is_typed else None
    # An element of dw is a long sum, which a whole block adds up.
    per_block = 1 if problem.direction is Direction.BACKWARD_FILTER else _THREADS
    return kernel_call(
        _unit(problem.direction, dtype),
        blocks_for(figures, output.size, per_block),
        _THREADS,
        _params(problem),
        in_order(*_FIELDS[problem.direction]),
    )


DIRECT = DirectConvolution()
