"""Resize: along each dimension a constant linear map, of which whole multiples by repetition are the cheap case.

Output place i looks at the input place x(i), which the coordinate transformation gives. Nearest neighbours take one element there;
linear and cubic interpolation weigh some around it, that is, they multiply by a matrix [output, input] that is known at import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.parts import take
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.rules.shape import known_pair
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.operators import Binary, Expand, InnerProduct, Transpose

__all__ = ["RULES"]

_MAX_MATRIX = 1 << 24
"""Elements of a matrix that maps a dimension."""


class _Axis(NamedTuple):
    """What becomes of a dimension. Immutable.

    Args:
        before: Its extent.
        after: The new one.
        scale: By which coordinates are divided; not always the quotient of the extents.
        roi: The part of the input that is resized, from 0 to 1.
    """

    before: int
    after: int
    scale: float
    roi: tuple[float, float]


class _Method(NamedTuple):
    """How elements are found, and what stands where there are none. Immutable."""

    mode: str
    coordinates: str
    nearest: str = "floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    outside: float = 0.0


def _resize(call: Call) -> Sequence[Imported]:
    x, attributes = call.tensor(0), call.attributes
    if call.version < 11:
        method = _Method(attributes.text("mode", "nearest"), "asymmetric")
    else:
        method = _Method(
            attributes.text("mode", "nearest"),
            attributes.text("coordinate_transformation_mode", "half_pixel"),
            attributes.text("nearest_mode", "round_prefer_floor"),
            attributes.real("cubic_coeff_a", -0.75),
            bool(attributes.integer("exclude_outside", 0)),
            bool(attributes.integer("antialias", 0)),
            attributes.real("extrapolation_value", 0.0),
        )
    if method.coordinates != "tf_crop_and_resize" or not method.outside:
        return (_along_all(call, x, method),)
    # Weights add up to 1, or are 0 outside: what is taken off every element comes back everywhere, and is all there is outside.
    value = call.scalar(x, method.outside, "outside")
    inner = _along_all(call, call.emit(Binary("sub"), x, value), method)
    return (call.emit(Binary("add"), inner, value),)


def _along_all(call: Call, x: Computed, method: _Method) -> Computed:
    for axis, one in _axes(call, x).items():
        x = _along(call, x, axis, one, method)
    return x


def _upsample(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    scales = call.attributes.reals("scales") if call.version < 9 else call.known(1, "scales").reshape(-1).tolist()
    method = _Method(call.attributes.text("mode", "nearest"), "asymmetric")
    if scales is None or len(scales) != x.ndim:
        raise BadParamError(f"a scale for each dimension of {x} is needed")
    for axis, scale in enumerate(scales):
        if scale != 1:
            x = _along(call, x, axis, _scaled(x.extent(axis), scale, (0.0, 1.0)), method)
    return (x,)


def _scaled(extent: int, scale: float, roi: tuple[float, float]) -> _Axis:
    if not 0 < scale < 1 << 20:
        raise BadParamError(f"a scale of {scale}")
    return _Axis(extent, math.floor(extent * (roi[1] - roi[0]) * scale), scale, roi)


def _axes(call: Call, x: Computed) -> dict[int, _Axis]:
    """The dimensions that change."""
    roi_at, scales_at, sizes_at = (None, 1, None) if call.version < 11 else (1, 2, 3)
    stated = call.attributes.integers("axes")
    axes = list(range(x.ndim)) if stated is None else [call.axis(axis, x.ndim) for axis in stated]
    policy = call.attributes.text("keep_aspect_ratio_policy", "stretch")
    roi = [(0.0, 1.0)] * len(axes)
    if roi_at and call.attributes.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        numbers = call.known(roi_at, "the roi").astype(np.float64).reshape(-1).tolist()
        if len(numbers) != 2 * len(axes):
            raise BadParamError(f"a roi of {len(numbers)} numbers for {len(axes)} dimensions")
        roi = list(zip(numbers[: len(axes)], numbers[len(axes) :], strict=True))
    scales = call.known(scales_at, "scales", optional=True)
    if scales is not None and scales.size:
        if scales.size != len(axes):
            raise BadParamError(f"{scales.size} scales for {len(axes)} dimensions")
        factors = dict(zip(axes, zip(scales.reshape(-1).tolist(), roi, strict=True), strict=True))
        return {
            axis: _scaled(x.extent(axis), scale, part)
            for axis, (scale, part) in factors.items()
            if scale != 1 or part != (0.0, 1.0)
        }
    if sizes_at is None or not call.has(sizes_at):
        raise BadParamError("neither scales nor sizes are given")
    few, many = (array.reshape(-1).tolist() for array in known_pair(call, sizes_at, "sizes"))
    if not len(few) == len(many) == len(axes):
        raise BadParamError(f"{len(few)} sizes for {len(axes)} dimensions")
    found: dict[int, _Axis] = {}
    for axis, a, b, part in zip(axes, few, many, roi, strict=True):
        if (a, b) == (x.few.shape[axis], x.many.shape[axis]) and part == (0.0, 1.0):
            continue
        if a != b:
            raise NotSupportedError(f"an extent of {a} that depends on the batch")
        found[axis] = _Axis(x.extent(axis), a, a / x.extent(axis), part)
    if policy != "stretch" and found:
        return _kept_aspect(x, axes, few, policy)
    return found


def _kept_aspect(x: Computed, axes: Sequence[int], sizes: Sequence[int], policy: str) -> dict[int, _Axis]:
    extents = [x.extent(axis) for axis in axes]
    quotients = [size / extent for size, extent in zip(sizes, extents, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise BadParamError(f"keep_aspect_ratio_policy {policy!r} is unknown")
    scale = min(quotients) if policy == "not_larger" else max(quotients)
    return {
        axis: _Axis(extent, math.floor(scale * extent + 0.5), scale, (0.0, 1.0))
        for axis, extent in zip(axes, extents, strict=True)
    }


def _along(call: Call, x: Computed, axis: int, one: _Axis, method: _Method) -> Computed:
    """x with another extent along one dimension."""
    if one.after < 1:
        raise NotSupportedError("tensors without elements are not supported")
    if one.before * one.after > _MAX_MATRIX:
        raise NotSupportedError(f"an extent of {one.before} as {one.after} is too large")
    places = _coordinates(one, method.coordinates)
    if method.mode == "nearest" and method.coordinates != "tf_crop_and_resize":
        indices = np.clip(_nearest(places, method.nearest), 0, one.before - 1).tolist()
        times, rest = divmod(one.after, one.before)
        if not rest and indices == [place // times for place in range(one.after)]:
            return _repeated(call, x, axis, times)
        if sum(b - a != 1 for a, b in pairwise(indices)) < 8:
            return take(call, x, axis, indices)
    return _mapped(call, x, axis, _matrix(one, places, method))


def _coordinates(one: _Axis, how: str) -> np.ndarray:
    i, scale = np.arange(one.after), one.scale
    length = scale * one.before  # the new extent before it is rounded
    if how == "half_pixel":
        return (i + 0.5) / scale - 0.5
    if how == "half_pixel_symmetric":
        return one.before / 2 * (1 - one.after / length) + (i + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if one.after > 1 else np.zeros(1)
    if how == "align_corners":
        return i * ((one.before - 1) / (length - 1)) if one.after > 1 else np.zeros(1)
    if how == "asymmetric":
        return i / scale
    if how == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if how == "tf_crop_and_resize":
        start, end = one.roi
        if one.after == 1:
            return np.array([0.5 * (start + end) * (one.before - 1)])
        return start * (one.before - 1) + i * (end - start) * (one.before - 1) / (one.after - 1)
    raise BadParamError(f"coordinate_transformation_mode {how!r} is unknown")


def _nearest(places: np.ndarray, how: str) -> np.ndarray:
    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if how not in ways:
        raise BadParamError(f"nearest_mode {how!r} is unknown")
    return ways[how](places).astype(np.int64)


def _kernel(method: _Method) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """The weight of an element by its distance, and from which distance on it is 0."""
    if method.mode == "linear" or method.mode == "bilinear":
        return (lambda d: np.maximum(1 - np.abs(d), 0)), 1
    if method.mode != "cubic":
        raise BadParamError(f"mode {method.mode!r} is unknown")
    a = method.cubic

    def cubic(d: np.ndarray) -> np.ndarray:
        d = np.abs(d)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return cubic, 2


def _matrix(one: _Axis, places: np.ndarray, method: _Method) -> np.ndarray:
    """The weights [output, input]; rows that look outside the part to be resized are 0."""
    weights = np.zeros((one.after, one.before))
    if method.mode == "nearest":
        weights[np.arange(one.after), np.clip(_nearest(places, method.nearest), 0, one.before - 1)] = 1
    else:
        kernel, reach = _kernel(method)
        narrow = min(one.scale, 1.0) if method.antialias else 1.0
        first = np.floor(places).astype(np.int64) - math.ceil(reach / narrow)
        for step in range(2 * math.ceil(reach / narrow) + 2):
            found = first + step
            weight = kernel((found - places) * narrow)
            if method.exclude_outside:
                weight = np.where((found >= 0) & (found < one.before), weight, 0)
            np.add.at(weights, (np.arange(one.after), np.clip(found, 0, one.before - 1)), weight)
        weights /= weights.sum(1, keepdims=True)
    if method.coordinates == "tf_crop_and_resize":
        weights[(places < 0) | (places > one.before - 1)] = 0
    return weights


def _repeated(call: Call, x: Computed, axis: int, times: int) -> Computed:
    """Each element so many times in a row."""
    if times == 1:
        return x
    apart = [(*shape[: axis + 1], 1, *shape[axis + 1 :]) for shape in x.shapes]
    y = call.emit(Expand((times, *(1,) * (x.ndim - axis - 1))), call.reshape(x, *apart))
    return call.reshape(y, *((*shape[:axis], shape[axis] * times, *shape[axis + 1 :]) for shape in x.shapes))


def _mapped(call: Call, x: Computed, axis: int, matrix: np.ndarray) -> Computed:
    """Each row along a dimension times a matrix."""
    order = (*(one for one in range(x.ndim) if one != axis), axis)
    back = tuple(order.index(one) for one in range(x.ndim))
    turned = x if axis == x.ndim - 1 else call.emit(Transpose(order), x)
    rows = [(math.prod(shape[:-1]), shape[-1]) for shape in turned.shapes]
    weight = call.constant(f"resize{axis}", np.ascontiguousarray(matrix.astype(x.few.dtype.numpy)))
    y = call.emit(InnerProduct(), call.reshape(turned, *rows), weight)
    y = call.reshape(y, *((*shape[:-1], len(matrix)) for shape in turned.shapes))
    return y if axis == x.ndim - 1 else call.emit(Transpose(back), y)


RULES: Mapping[str, Rule] = {"Resize": _resize, "Upsample": _upsample}
