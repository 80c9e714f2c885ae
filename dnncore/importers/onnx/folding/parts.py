"""Arrays put together, cut into pieces, and looked up by indices, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.folding.fold import Fold, Folding, axis_of

__all__ = ["FOLDS", "slices", "split_sizes"]


def _gather(node: Folding) -> Sequence[np.ndarray]:
    x, indices, axis = node[0], node[1], node.attributes.integer("axis", 0)
    axis = axis_of(axis, x.ndim)
    node.claim((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.itemsize)
    return (np.take(x, indices, axis),)


def _gather_nd(node: Folding) -> Sequence[np.ndarray]:
    x, indices, lead = node[0], node[1], node.attributes.integer("batch_dims", 0)
    depth = indices.shape[-1] if indices.ndim else 0
    if (
        not 0 <= lead < min(indices.ndim, x.ndim)
        or not 1 <= depth <= x.ndim - lead
        or x.shape[:lead] != indices.shape[:lead]
    ):
        raise BadParamError(f"indices {list(indices.shape)} and batch_dims {lead} do not fit {list(x.shape)}")
    node.claim((*indices.shape[:-1], *x.shape[lead + depth :]), x.itemsize)
    own = np.ogrid[tuple(slice(extent) for extent in indices.shape[:-1])][:lead]  # where x and the indices go together
    return (np.asarray(x[(*own, *np.moveaxis(indices, -1, 0))]),)


def _scatter_nd(node: Folding) -> Sequence[np.ndarray]:
    x, indices, updates = node[0], node[1], node[2]
    if (reduction := node.attributes.text("reduction", "none")) != "none":
        raise NotSupportedError(f"reduction {reduction!r} is not supported")
    depth = indices.shape[-1] if indices.ndim else 0
    if not 1 <= depth <= x.ndim or updates.shape != (*indices.shape[:-1], *x.shape[depth:]):
        raise BadParamError(
            f"indices {list(indices.shape)} and updates {list(updates.shape)} do not fit {list(x.shape)}"
        )
    node.claim(x.shape, x.itemsize)
    y = x.copy()
    y[tuple(np.moveaxis(indices, -1, 0))] = updates
    return (y,)


def _concat(node: Folding) -> Sequence[np.ndarray]:
    parts = [node[index] for index in range(len(node.inputs))]
    node.claim((sum(part.size for part in parts),), parts[0].itemsize)
    return (np.concatenate(parts, axis_of(node.attributes.integer("axis", 1), parts[0].ndim)),)


def slices(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> dict[int, slice]:
    """What ONNX's Slice takes along each dimension, clamped as NumPy does.

    Raises:
        BadParamError: the lists do not fit together.
    """
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise BadParamError(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not fit together")
    found = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis_of(axis, len(shape))
        # A negative end behind the last element counted from the end stands for "to the first one", which NumPy spells None.
        stop = None if step < 0 and end < -shape[axis] else end
        found[axis] = slice(start, stop, step)
    return found


def _slice(node: Folding) -> Sequence[np.ndarray]:
    x = node[0]
    starts, ends, axes = (node.integers(index, name, 10) for index, name in ((1, "starts"), (2, "ends"), (3, "axes")))
    if starts is None or ends is None:
        raise BadParamError("starts or ends are left out")
    found = slices(x.shape, starts, ends, axes, node.integers(4, "steps", 10))
    return (x[tuple(found.get(axis, slice(None)) for axis in range(x.ndim))],)


def _split(node: Folding) -> Sequence[np.ndarray]:
    x, axis = node[0], axis_of(node.attributes.integer("axis", 0), node[0].ndim)
    sizes = split_sizes(
        x.shape[axis], node.integers(1, "split", 13), node.attributes.integer("num_outputs", node.num_outputs)
    )
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def split_sizes(extent: int, sizes: Sequence[int] | None, parts: int) -> tuple[int, ...]:
    """Extents of the pieces of ONNX's Split: as given, or equal but for the last.

    Raises:
        BadParamError: they do not add up.
    """
    if sizes is None:
        if not 1 <= parts <= max(extent, 1):
            raise BadParamError(f"an extent of {extent} cannot be cut into {parts}")
        each = -(-extent // parts)
        sizes = (*(each,) * (parts - 1), extent - each * (parts - 1))
    if min(sizes, default=-1) < 0 or sum(sizes) != extent:
        raise BadParamError(f"pieces of {list(sizes)} do not add up to {extent}")
    return tuple(sizes)


FOLDS: Mapping[str, Fold] = {
    "Concat": _concat,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Split": _split,
}
