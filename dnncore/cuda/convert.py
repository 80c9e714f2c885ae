"""Transforms from one element type to another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.elementwise import Layout, layout_of
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    ELEMENT_TYPES,
    TENSOR_VIEW,
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import AddProblem

__all__ = ["Convert", "seconds_by_element"]

_THREADS = 128

_PARAMS = struct(
    *BLEND,
    ("a", ADDRESS),
    ("c", ADDRESS),
    ("size", "<i8"),
    ("a_view", TENSOR_VIEW),
    ("c_view", TENSOR_VIEW),
    ("a_type", "<i4"),
    ("c_type", "<i4"),
)

_UNIT = generate(
    "dnncore/convert.cuh", "convert", "dnncore::convert", "ConvertParams", _PARAMS, _THREADS, starts_early=True
)

_OF_MEMORY_RATE = 0.54
"""Of the memory rate; as the strided kernel of `elementwise`."""

_DIVISION = 120
"""Multiply-adds in whose time it finds its place along one dimension [measured on an H200: one to three dimensions]."""


@dataclass(frozen=True, slots=True)
class Convert:
    """c = alpha * a + beta * c, from any element type to any. Immutable."""

    name: str = "convert"

    def offer(self, problem: AddProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        if not {problem.a.dtype, problem.c.dtype} <= set(ELEMENT_TYPES):
            return "a tensor is bool"
        layout = layout_of(problem)
        return Offer(seconds_by_element(layout, figures), partial(_prepare, problem, figures, layout))

    def units(self) -> tuple[Unit, ...]:
        """One for all types."""
        return (_UNIT,)


def seconds_by_element(layout: Layout, figures: DeviceFigures) -> float:
    """What a launch takes in which each thread takes one element at a time, wherever that lies."""
    divisions = math.prod(layout.extents) * len(layout.extents)
    return figures.launch_seconds + max(
        layout.nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE),
        divisions * _DIVISION / figures.products_per_second(Maths.FP32),
    )


def _prepare(problem: AddProblem, figures: DeviceFigures, layout: Layout) -> Calls:
    a, c = problem.a, problem.c
    a_strides, c_strides = layout.strides
    params = record(
        _PARAMS,
        size=c.size,
        a_view=view(layout.extents, a_strides),
        c_view=view(layout.extents, c_strides),
        a_type=ELEMENT_TYPES.index(a.dtype),
        c_type=ELEMENT_TYPES.index(c.dtype),
    )
    blocks = blocks_for(figures, c.size, _THREADS)
    return kernel_call(_UNIT, blocks, _THREADS, params, in_order("a", "c"), starts_early=figures.starts_early)
