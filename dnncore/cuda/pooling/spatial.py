"""Pooling over any number of spatial dimensions, a thread per element of the output."""

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
    DIVISOR,
    TENSOR_VIEW,
    c_type,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.pooling.problem import DTYPES, MODES, Geometry, PoolingProblem, mode_of, operands_of, window_places
from dnncore.cuda.unit import Unit
from dnncore.descriptors import MAX_NDIM, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import PoolingBackwardProblem

__all__ = ["SpatialPooling"]

_MAX_SPATIAL = MAX_NDIM - 2
_THREADS = 128

_ELEMENT = {"forward": 2400, "backward": 3000}
_WINDOW_PLACE = {"forward": 165, "backward": 550}
"""Multiply-adds in whose time a thread finds the place of an element, and looks at one of a window's [measured on an H200: windows
of 2 x 2, 3 x 3 and 3 x 3 x 3]."""

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("y", ADDRESS),
    ("dy", ADDRESS),
    ("output", ADDRESS),
    ("indices", ADDRESS),
    ("x_view", TENSOR_VIEW),
    ("dy_view", TENSOR_VIEW),
    ("output_view", TENSOR_VIEW),
    ("indices_view", TENSOR_VIEW),
    ("x_extent", "<i8", _MAX_SPATIAL),
    ("y_extent", "<i8", _MAX_SPATIAL),
    ("window", "<i8", _MAX_SPATIAL),
    ("stride", DIVISOR, _MAX_SPATIAL),
    ("before", "<i8", _MAX_SPATIAL),
    ("counted_low", "<i8", _MAX_SPATIAL),
    ("counted_high", "<i8", _MAX_SPATIAL),
    ("size", "<i8"),
    ("mode", "<i4"),
    ("channels_last", "<i4"),
    ("propagates_nan", "<i4"),
)


@dataclass(frozen=True, slots=True)
class SpatialPooling:
    """One direction of pooling over up to six spatial dimensions. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "spatial"

    def offer(self, problem: PoolingProblem, figures: DeviceFigures) -> Offer:
        """See `backend.Algorithm`; it supports everything that is legal."""
        places = window_places(problem)
        if isinstance(problem, PoolingBackwardProblem) and mode_of(problem) == "max":
            places *= math.prod(problem.pooling.window)  # each place looks for the maximum of each of its windows again
        products = problem.outputs[0].size * _ELEMENT[self.direction] + places * _WINDOW_PLACE[self.direction]
        seconds = products / figures.products_per_second(Maths.FP32)
        return Offer(figures.launch_seconds + seconds, partial(self._prepare, problem, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self._unit(dtype) for dtype in DTYPES[self.direction])

    def _prepare(self, problem: PoolingProblem, figures: DeviceFigures) -> Calls:
        output = problem.outputs[0]
        pooling, geometry = problem.pooling, Geometry.of(problem)
        params = record(
            _PARAMS,
            output_view=_view(output),
            x_extent=_spatial(geometry.x, 1),
            y_extent=_spatial(geometry.y, 1),
            window=_spatial(pooling.window, 1),
            stride=[divisor(stride) for stride in _spatial(pooling.stride, 1)],
            before=_spatial(tuple(before for before, _ in pooling.padding), 0),
            counted_low=_spatial(geometry.counted_low, 0),
            counted_high=_spatial(geometry.counted_high, 1),
            size=output.size,
            mode=tuple(MODES).index(mode_of(problem)),
            channels_last=output.strides[1] < min(output.strides[2:]),
            propagates_nan=pooling.propagate_nan,
        )
        operands = operands_of(problem)
        for name, tensor in operands.views.items():
            params[f"{name}_view"] = _view(tensor)
        grid = blocks_for(figures, output.size, _THREADS)
        return kernel_call(self._unit(output.dtype), grid, _THREADS, params, in_order(*operands.fields))

    def _unit(self, dtype: DType) -> Unit:
        entry = f"pooling_{self.direction}_{self.name}_{c_type(dtype)}"
        function = f"pooling_spatial_{self.direction}<{c_type(dtype)}>"
        return generate("dnncore/pooling.cuh", entry, function, "PoolingParams", _PARAMS, _THREADS)


def _view(tensor: TensorDescriptor) -> np.void:
    missing = _MAX_SPATIAL + 2 - tensor.ndim
    return view(
        (*tensor.shape[:2], *(1,) * missing, *tensor.shape[2:]),
        (*tensor.strides[:2], *(0,) * missing, *tensor.strides[2:]),
    )


def _spatial(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Values a spatial dimension, filled up in front like the views."""
    return (*(fill,) * (_MAX_SPATIAL - len(values)), *values)
