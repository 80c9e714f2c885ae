"""The largest and smallest elements of arrays, and where they are, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.errors import BadParamError
from dnncore.importers.onnx.folding.fold import Fold, Folding, axis_of

__all__ = ["FOLDS"]


def _top_k(node: Folding) -> Sequence[np.ndarray]:
    """In order whether that is asked for or not; of equal elements the one with the lower index comes first, NaN before all."""
    x, attributes = node[0], node.attributes
    attributes.integer("sorted", 1)
    axis = axis_of(attributes.integer("axis", -1), x.ndim)
    wanted = (attributes.integer("k", 0),) if node.version < 10 else node.integers(1, "k", 10)
    if wanted is None or len(wanted) != 1 or not 0 <= wanted[0] <= x.shape[axis]:
        raise BadParamError(f"k {wanted} must be one number of 0 to {x.shape[axis]}")
    node.claim(x.shape)
    is_number = x.dtype.kind not in "iu"
    largest = bool(attributes.integer("largest", 1))
    order = _descending(x if largest else -x, axis) if is_number or largest else np.argsort(x, axis, kind="stable")
    indices = np.take(order, np.arange(wanted[0]), axis)
    return np.take_along_axis(x, indices, axis), indices.astype(np.int64)


def _descending(x: np.ndarray, axis: int) -> np.ndarray:
    """Indices of the elements, the largest first: what sorts them upwards from the last on, read backwards, so that equals stay."""
    found = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - found)


FOLDS: Mapping[str, Fold] = {"TopK": _top_k}
