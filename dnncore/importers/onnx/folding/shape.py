"""Arrays made of shapes, other extents and other orders of dimensions, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.errors import BadParamError
from dnncore.importers.onnx.folding.fold import Fold, Folding, axis_of

__all__ = ["FOLDS"]


def _constant_of_shape(node: Folding) -> Sequence[np.ndarray]:
    shape = _shape(node[0])
    value = node.attributes.tensor("value")
    value = np.zeros(1, np.float32) if value is None else value
    if value.size != 1:
        raise BadParamError(f"a value of {value.size} elements, 1 is needed")
    node.claim(shape, value.itemsize)
    return (np.broadcast_to(value.reshape(()), shape),)


def _shape(array: np.ndarray) -> tuple[int, ...]:
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size > 64:
        raise BadParamError(f"a shape must be at most 64 whole numbers, it is {array.dtype}{list(array.shape)}")
    return tuple(int(extent) for extent in array)


def _expand(node: Folding) -> Sequence[np.ndarray]:
    shape = np.broadcast_shapes(node[0].shape, _shape(node[1]))
    node.claim(shape, node[0].itemsize)
    return (np.broadcast_to(node[0], shape),)


def _range(node: Folding) -> Sequence[np.ndarray]:
    start, limit, delta = (node[index].reshape(()) for index in range(3))
    if delta == 0:
        raise BadParamError("a range with steps of 0")
    count = max(math.ceil((limit - start) / delta), 0)
    node.claim((count,))
    return ((start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype),)


def _unsqueeze(node: Folding) -> Sequence[np.ndarray]:
    x, axes = node[0], node.integers(1, "axes", 13)
    if axes is None:
        raise BadParamError("axes are left out")
    return (np.expand_dims(x, tuple(axes)),)


def _squeeze(node: Folding) -> Sequence[np.ndarray]:
    axes = node.integers(1, "axes", 13)
    return (np.squeeze(node[0], None if axes is None else tuple(axes)),)


def _reshape(node: Folding) -> Sequence[np.ndarray]:
    x = node[0]
    shape = node.attributes.integers("shape") if node.version < 5 else _shape(node[1])
    if shape is None:
        raise BadParamError("the shape is left out")
    if not node.attributes.integer("allowzero", 0):
        shape = tuple(x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(shape))
    return (x.reshape(shape),)


def _flatten(node: Folding) -> Sequence[np.ndarray]:
    x, axis = node[0], node.attributes.integer("axis", 1)
    axis = axis if axis == x.ndim else axis_of(axis, x.ndim)
    return (x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)


def _transpose(node: Folding) -> Sequence[np.ndarray]:
    return (np.transpose(node[0], node.attributes.integers("perm")),)


def _tile(node: Folding) -> Sequence[np.ndarray]:
    x, repeats = node[0], _shape(node[1])
    if len(repeats) != x.ndim:
        raise BadParamError(f"{len(repeats)} repeats for {x.ndim} dimensions")
    node.claim([extent * count for extent, count in zip(x.shape, repeats, strict=True)], x.itemsize)
    return (np.tile(x, repeats),)


def _identity(node: Folding) -> Sequence[np.ndarray]:
    return (node[0],)


FOLDS: Mapping[str, Fold] = {
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _identity,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _identity,
    "Range": _range,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
