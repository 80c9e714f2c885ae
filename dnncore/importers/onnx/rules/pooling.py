"""Maximum and average pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from dnncore.errors import NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.rules.window import Window, read_window
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.operators import Binary, Convolution, GlobalPooling, Pad, Pooling, Slice

__all__ = ["RULES"]

_MAX_TAPS = 128
"""Of a dilated maximum, each of which is an operation of its own."""


def _window(call: Call, x: Computed) -> tuple[Window, bool]:
    """The window, and whether extents are rounded up."""
    return read_window(call, x, None), bool(call.attributes.integer("ceil_mode", 0))


def _max_pool(call: Call) -> Sequence[Imported]:
    call.only_first_output("giving the indices of the maxima")
    x = call.tensor(0)
    window, ceil_mode = _window(call, x)
    call.attributes.integer("storage_order", 0)  # of the indices
    if set(window.dilations) != {1}:
        return (_dilated_maximum(call, x, window, ceil_mode),)
    return (call.emit(Pooling("max", window.kernel, window.strides, window.pads, ceil_mode), x),)


def _average_pool(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    window, ceil_mode = _window(call, x)
    include = bool(call.attributes.integer("count_include_pad", 0))
    if set(window.dilations) != {1}:
        return (_dilated_average(call, x, window, include, ceil_mode),)
    mode = "average_include_padding" if include else "average_exclude_padding"
    return (call.emit(Pooling(mode, window.kernel, window.strides, window.pads, ceil_mode), x),)


def _outputs(x: Computed, window: Window, ceil_mode: bool) -> list[int]:
    """Extents of the result."""
    found = []
    for axis, (stride, span, (before, behind)) in enumerate(
        zip(window.strides, window.spans, window.pads, strict=True)
    ):
        extent = x.extent(2 + axis)
        room = extent + before + behind - span
        number = (-(-room // stride) if ceil_mode else room // stride) + 1
        found.append(number - 1 if ceil_mode and (number - 1) * stride >= extent + before else number)
    return found


def _dilated_maximum(call: Call, x: Computed, window: Window, ceil_mode: bool) -> Computed:
    """The maximum of a few tensors, one for each place of the window, each x moved and with steps."""
    numbers = _outputs(x, window, ceil_mode)
    if math.prod(window.kernel) > _MAX_TAPS:
        raise NotSupportedError(f"a dilated maximum over {math.prod(window.kernel)} places; {_MAX_TAPS} are supported")
    pads = [(0, 0), (0, 0)]
    for axis, ((before, _), stride, span, number) in enumerate(
        zip(window.pads, window.strides, window.spans, numbers, strict=True)
    ):
        pads.append((before, max((number - 1) * stride + span - x.extent(2 + axis) - before, 0)))
    padded = call.emit(Pad(tuple(pads), -math.inf), x) if any(map(any, pads)) else x
    total: Computed | None = None
    for tap in product(*map(range, window.kernel)):
        part = padded
        for axis, (step, place) in enumerate(zip(window.strides, tap, strict=True)):
            first = place * window.dilations[axis]
            part = call.emit(Slice(2 + axis, first, first + (numbers[axis] - 1) * step + 1, step), part)
        total = part if total is None else call.emit(Binary("max"), total, part)
    assert total is not None
    return total


def _dilated_average(call: Call, x: Computed, window: Window, include: bool, ceil_mode: bool) -> Computed:
    """As a convolution of each channel with ones, divided by how many places each window has."""
    channels, dtype, ndim = x.extent(1), x.few.dtype.numpy, x.ndim - 2
    counts, numbers = np.ones((1,) * x.ndim), _outputs(x, window, ceil_mode)
    pads = list(window.pads)
    for axis, (stride, dilation, kernel, span) in enumerate(
        zip(window.strides, window.dilations, window.kernel, window.spans, strict=True)
    ):
        extent, (before, behind), number = x.extent(2 + axis), window.pads[axis], numbers[axis]
        places = np.arange(number)[:, None] * stride + np.arange(kernel) * dilation - before
        there = (places >= -before) & (places < extent + behind) if include else (places >= 0) & (places < extent)
        counts = counts * there.sum(1).reshape((1,) * (2 + axis) + (number,) + (1,) * (ndim - axis - 1))
        pads[axis] = (before, max(behind, (number - 1) * stride + span - extent - before))
    if not counts.all():
        raise NotSupportedError("some windows have no places")
    weight = call.constant("window", np.ones((channels, 1, *window.kernel), dtype))
    sums = call.emit(Convolution(window.strides, tuple(pads), window.dilations, channels), x, weight)
    return call.emit(Binary("mul"), sums, call.constant("divisors", (1 / counts).astype(dtype)))


def _global(mode: str) -> Rule:
    def rule(call: Call) -> Sequence[Imported]:
        return (call.emit(GlobalPooling(mode), call.tensor(0)),)

    return rule


RULES: Mapping[str, Rule] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global("average"),
    "GlobalMaxPool": _global("max"),
    "MaxPool": _max_pool,
}
