"""Maximum and average pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.casting import as_dtype
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.rules.window import Window, read_window
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.operators import (
    Binary,
    Cast,
    Convolution,
    GlobalPooling,
    Pad,
    PlaneOffsets,
    Pooling,
    PoolingWithIndices,
    Slice,
)

__all__ = ["RULES"]

_MAX_TAPS = 256
"""Of a dilated maximum along a dimension, each of which is an operation of its own."""


def _window(call: Call, x: Computed) -> tuple[Window, bool]:
    """The window, and whether extents are rounded up."""
    return read_window(call, x, None), bool(call.attributes.integer("ceil_mode", 0))


def _max_pool(call: Call) -> Sequence[Imported]:
    given = call.tensor(0)
    # Poolings are of floating-point numbers, and all of 8 bits are among those of 32.
    x = given if given.few.dtype is not DType.UINT8 else as_dtype(call, given, DType.FLOAT32)
    window, ceil_mode = _window(call, x)
    by_columns = bool(call.attributes.integer("storage_order", 0))
    settings = ("max", window.kernel, window.strides, window.pads, ceil_mode)
    indices: tuple[Computed, ...] = ()
    if call.wants(1):
        if set(window.dilations) != {1}:
            raise NotSupportedError("giving the indices of the maxima of a dilated window is not supported")
        y, places = call.emit_all(PoolingWithIndices(*settings), x)
        indices = (_in_all(call, x, _by_columns(call, x, places) if by_columns else places),)
    elif set(window.dilations) != {1}:
        y = _dilated_maximum(call, x, window, ceil_mode)
    else:
        y = call.emit(Pooling(*settings), x)
    return (y if x is given else call.emit(Cast(given.few.dtype.value), y), *indices)


def _by_columns(call: Call, x: Computed, places: Computed) -> Computed:
    """Places in planes counted along columns, from those along rows."""
    if x.ndim != 4:
        raise NotSupportedError(f"storage_order 1 of the maxima of {x}, which has not two spatial dimensions")
    height, width = x.extent(2), x.extent(3)
    columns = call.scalar(places, width, "columns")
    column = call.emit(Binary("mod"), places, columns)
    row = call.emit(Binary("div"), call.emit(Binary("sub"), places, column), columns)
    return call.emit(Binary("add", float(height)), column, row)


def _in_all(call: Call, x: Computed, places: Computed) -> Computed:
    """Places in all of x, from those in planes."""
    plane = math.prod(x.extent(axis) for axis in range(2, x.ndim))
    return call.emit(Binary("add"), places, call.emit(PlaneOffsets(plane), x))


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
    """Along one dimension after the other, the maximum of x moved by each place of the window, with steps."""
    for axis, number in enumerate(_outputs(x, window, ceil_mode), 2):
        (before, _), step, span = window.pads[axis - 2], window.strides[axis - 2], window.spans[axis - 2]
        taps, distance, width = window.kernel[axis - 2], window.dilations[axis - 2], (number - 1) * step + 1
        if taps > _MAX_TAPS:
            raise NotSupportedError(f"a dilated maximum over {taps} places; {_MAX_TAPS} are supported")
        behind = max((number - 1) * step + span - x.extent(axis) - before, 0)
        if before or behind:
            pads = tuple((before, behind) if one == axis else (0, 0) for one in range(x.ndim))
            x = call.emit(Pad(pads, -math.inf), x)
        parts = [call.emit(Slice(axis, tap * distance, tap * distance + width, step), x) for tap in range(taps)]
        x = parts[0]
        for part in parts[1:]:
            x = call.emit(Binary("max"), x, part)
    return x


def _dilated_average(call: Call, x: Computed, window: Window, include: bool, ceil_mode: bool) -> Computed:
    """As a convolution of each channel with ones, divided by how many places each window has."""
    channels, dtype, ndim = x.extent(1), x.few.dtype.numpy, x.ndim - 2
    counts, numbers = np.ones((1,) * x.ndim), _outputs(x, window, ceil_mode)
    call.claim((channels, *window.kernel), dtype.itemsize)
    call.claim(numbers, 8)
    pads = list(window.pads)
    for axis, (stride, dilation, kernel, span) in enumerate(
        zip(window.strides, window.dilations, window.kernel, window.spans, strict=True)
    ):
        extent, (before, behind), number = x.extent(2 + axis), window.pads[axis], numbers[axis]
        call.claim((number, kernel), 8)
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
