"""Element-wise functions used too rarely to be compiled for every element type: one kernel for all of them and all types."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.convert import seconds_by_element
from dnncore.cuda.elementwise import Layout, layout_of
from dnncore.cuda.params import ADDRESS, BLEND, ELEMENT_TYPES, TENSOR_VIEW, generate, record, struct, view
from dnncore.cuda.unit import Unit
from dnncore.descriptors import BinaryOperator
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import AddProblem, BinaryProblem, FillProblem, WhereProblem

__all__ = ["POINTWISE", "Pointwise"]

_THREADS = 128
_MAX_INPUTS = 3
_INPUTS = tuple(f"input_{i}" for i in range(_MAX_INPUTS))
_TYPES = {dtype: i for i, dtype in enumerate((*ELEMENT_TYPES, DType.BOOL))}
"""`dnncore::ElementType`, and kBool behind them."""

_FUNCTIONS = {name: i for i, name in enumerate(("one", "first", "where", "quotient", *BinaryOperator))}
"""`dnncore::PointwiseFunction`."""

_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in _INPUTS),
    ("output", ADDRESS),
    ("size", "<i8"),
    ("factors", "<f8", (2,)),
    ("views", TENSOR_VIEW, (_MAX_INPUTS,)),
    ("output_view", TENSOR_VIEW),
    ("types", "<i4", (_MAX_INPUTS,)),
    ("output_type", "<i4"),
    ("function", "<i4"),
)
_UNIT = generate("dnncore/pointwise.cuh", "pointwise", "dnncore::pointwise", "PointwiseParams", _PARAMS, _THREADS)

PointwiseProblem = FillProblem | AddProblem | BinaryProblem | WhereProblem


@dataclass(frozen=True, slots=True)
class Pointwise:
    """out = function(inputs) for elements of any types, an element per thread at a time, in double precision. Immutable."""

    name: str = "pointwise"

    def offer(self, problem: PointwiseProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`; it takes every problem, most of which others compute faster."""
        layout = layout_of(problem)
        return Offer(seconds_by_element(layout, figures), partial(_prepare, problem, figures, layout))

    def units(self) -> tuple[Unit, ...]:
        """One for all functions and types."""
        return (_UNIT,)


def _function(problem: PointwiseProblem) -> int:
    match problem:
        case BinaryProblem(operator=BinaryOperator.DIV) if problem.a.dtype.is_floating:
            return _FUNCTIONS["quotient"]
        case BinaryProblem():
            return _FUNCTIONS[problem.operator]
        case WhereProblem():
            return _FUNCTIONS["where"]
        case AddProblem():
            return _FUNCTIONS["first"]
    return _FUNCTIONS["one"]


def _prepare(problem: PointwiseProblem, figures: DeviceFigures, layout: Layout) -> Calls:
    (output,) = problem.outputs
    factors = (problem.alpha1, problem.alpha2) if isinstance(problem, BinaryProblem) else (1.0, 1.0)
    params = record(
        _PARAMS,
        size=math.prod(layout.extents),
        factors=factors,
        output_view=view(layout.extents, layout.strides[-1]),
        output_type=_TYPES[output.dtype],
        function=_function(problem),
    )
    for i, (tensor, steps) in enumerate(zip(problem.inputs, layout.strides, strict=False)):
        params["views"][i] = view(layout.extents, steps)
        params["types"][i] = _TYPES[tensor.dtype]
    places = in_order(*_INPUTS[: len(problem.inputs)], "output")
    return kernel_call(_UNIT, blocks_for(figures, output.size, _THREADS), _THREADS, params, places)


POINTWISE = Pointwise()
