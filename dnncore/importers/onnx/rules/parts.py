"""Tensors put together, cut into pieces, and given borders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.folding.parts import slices, split_sizes
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.rules.shape import known_pair
from dnncore.importers.onnx.values import FEW, MANY, Computed, Imported
from dnncore.nn.operators import Concat, Pad, Slice, Split, Transpose

__all__ = ["RULES", "take"]

_MAX_PIECES = 64
"""Of a tensor whose elements are taken in another order: each piece is an operation of its own."""

_INDEX_BYTES = 64
"""Of an index in an array and in a list of Python."""


def take(call: Call, x: Computed, axis: int, indices: Sequence[int]) -> Computed:
    """Elements of x along a dimension, by indices from 0 on: in pieces that follow one another in x.

    Raises:
        NotSupportedError: there are too many pieces.
    """
    extent = x.extent(axis)
    even = indices if isinstance(indices, range) else _evenly_spaced(indices)
    if even == range(extent):
        return x
    if not indices:
        return call.emit(Slice(axis, 0, 0), x)
    if even is not None and (even.step > 0 or len(even) == 1):
        return call.emit(Slice(axis, even[0], even[-1] + 1, max(even.step, 1)), x)
    if even is not None and len(even) > _MAX_PIECES:
        raise NotSupportedError(f"{len(even)} elements are taken from behind, 1 to {_MAX_PIECES} are supported")
    pieces: list[list[int]] = []
    for index in indices:
        if not 0 <= index < extent:
            raise BadParamError(f"index {index} is outside an extent of {extent}")
        if pieces and pieces[-1][-1] + 1 == index:
            pieces[-1].append(index)
        else:
            pieces.append([index])
    if not 1 <= len(pieces) <= _MAX_PIECES:
        raise NotSupportedError(f"elements from {len(pieces)} places are taken, 1 to {_MAX_PIECES} are supported")
    parts = [call.emit(Slice(axis, piece[0], piece[-1] + 1), x) for piece in pieces]
    return parts[0] if len(parts) == 1 else call.emit(Concat(axis), *parts)


def _evenly_spaced(indices: Sequence[int]) -> range | None:
    """The indices as a range; None where they are none."""
    steps = {b - a for a, b in pairwise(indices)}
    if len(steps) > 1 or steps == {0} or not indices:
        return None
    step = steps.pop() if steps else 1
    return range(indices[0], indices[-1] + (1 if step > 0 else -1), step)


def _concat(call: Call) -> Sequence[Imported]:
    parts = [call.parameter(index) for index in range(len(call.inputs))]
    if not parts:
        raise BadParamError("no inputs")
    axis = call.axis(call.attributes.integer("axis", 1), parts[0].ndim)
    return (call.emit(Concat(axis), *parts),)


def _split(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    axis = call.axis(call.attributes.integer("axis", 0), x.ndim)
    sizes = call.attributes.integers("split") if call.version < 13 else call.integers(1, "the sizes")
    parts = call.attributes.integer("num_outputs", len(call.outputs))
    return call.emit_all(Split(split_sizes(x.extent(axis), sizes, parts), axis), x)


def _slice(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    few, many = (
        slices(shape, *arguments)
        for shape, arguments in zip(x.shapes, zip(*_arguments(call), strict=True), strict=True)
    )
    for axis, taken in few.items():
        ranges = [range(*one.indices(shape[axis])) for one, shape in zip((taken, many[axis]), x.shapes, strict=True)]
        if all(one == range(shape[axis]) for one, shape in zip(ranges, x.shapes, strict=True)):
            continue
        if ranges[0] != ranges[1] or x.few.shape[axis] != x.many.shape[axis]:
            raise NotSupportedError(f"taking some of the images of {x} is not supported")
        x = take(call, x, axis, ranges[0])
    return (x,)


_Numbers = tuple[int, ...]


def _arguments(call: Call) -> list[tuple[_Numbers | None, _Numbers | None]]:
    """Starts, ends, axes and steps for few and for many images: attributes in models before opset 10, operands since."""
    if call.version < 10:
        found = [call.attributes.integers(name) for name in ("starts", "ends", "axes")]
        if None in found[:2]:
            raise BadParamError("starts or ends are left out")
        return [*((one, one) for one in found), (None, None)]
    arguments: list[tuple[_Numbers | None, _Numbers | None]] = []
    for index, what in enumerate(("starts", "ends", "axes", "steps"), 1):
        if not call.has(index) and index > 2:
            arguments.append((None, None))
            continue
        few, many = known_pair(call, index, what)
        arguments.append((tuple(map(int, few.reshape(-1))), tuple(map(int, many.reshape(-1)))))
    return arguments


def _gather(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    axis = call.axis(call.attributes.integer("axis", 0), x.ndim)
    if x.ndim == 1 and x.few.shape != x.many.shape:
        return (_of_each_image(call, x),)
    indices = call.known(1, "indices")
    extent = x.extent(axis)
    wanted = [int(index) for index in indices.reshape(-1)]
    if any(not -extent <= index < extent for index in wanted):
        raise BadParamError(f"an index is outside an extent of {extent}")
    if not wanted:
        raise NotSupportedError("tensors without elements are not supported")
    y = take(call, x, axis, [index % extent for index in wanted])
    few, many = ((*shape[:axis], *indices.shape, *shape[axis + 1 :]) for shape in x.shapes)
    return (call.reshape(y, few, many),)


def _of_each_image(call: Call, x: Computed) -> Computed:
    """Elements of images that lie one behind the other in x: the same of each, in any order, as PyTorch's as_strided is written."""
    pair = known_pair(call, 1, "indices")
    length = x.many.shape[0] - x.few.shape[0]
    taken = pair[0][0] if pair[0].ndim else pair[0]
    for indices, images, (size,) in zip(pair, (FEW, MANY), x.shapes, strict=True):
        first = np.arange(images).reshape(-1, *(1,) * taken.ndim) * length
        if size != images * length or not np.array_equal(indices, first + taken):
            raise NotSupportedError(f"indices {list(indices.shape)} into {x} are not the same places of each image")
    if not taken.size or taken.min() < 0 or taken.max() >= length:
        raise NotSupportedError(f"indices {list(taken.shape)} into an image of {length} elements reach beyond it")
    call.claim(taken.shape, _INDEX_BYTES)
    is_turned = taken.size == length and not np.array_equal(taken.reshape(-1), np.arange(length))
    if is_turned and (order := _order(taken)) is not None:
        inner = [taken.shape[axis] for axis in order]
        y = call.reshape(x, (FEW, *inner), (MANY, *inner))
        return call.emit(Transpose((0, *(1 + order.index(axis) for axis in range(taken.ndim)))), y)
    y = take(call, call.reshape(x, (FEW, length), (MANY, length)), 1, taken.reshape(-1).tolist())
    return call.reshape(y, (FEW, *taken.shape), (MANY, *taken.shape))


def _order(indices: np.ndarray) -> tuple[int, ...] | None:
    """The order of dimensions in which indices count from 0 on; None where they do not."""
    steps = [
        int(np.take(indices, 1, axis).flat[0] - indices.flat[0]) if extent > 1 else 0
        for axis, extent in enumerate(indices.shape)
    ]
    order = tuple(sorted(range(indices.ndim), key=lambda axis: -steps[axis]))
    counted = indices.transpose(order).reshape(-1)
    return order if np.array_equal(counted, np.arange(indices.size)) else None


def _pad(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    mode = call.attributes.text("mode", "constant")
    pads = _pads(call, x)
    for axis, pair in enumerate(pads):  # what is cut off
        if min(pair) < 0:
            first, behind = max(-pair[0], 0), x.extent(axis) - max(-pair[1], 0)
            if first >= behind:
                raise NotSupportedError("tensors without elements are not supported")
            x = take(call, x, axis, range(first, behind))
    pads = [(max(before, 0), max(after, 0)) for before, after in pads]
    if not any(any(pair) for pair in pads):
        return (x,)
    if mode == "constant":
        if call.version < 11:
            value = call.attributes.real("value", 0.0)
        else:
            given = call.known(2, "the value", optional=True)
            value = 0.0 if given is None else float(given.reshape(()))
        return (call.emit(Pad(tuple(pads), value), x),)
    if mode not in ("reflect", "edge", "wrap"):
        raise BadParamError(f"mode {mode!r} is unknown")
    for axis, (before, after) in enumerate(pads):
        if before or after:
            extent = x.extent(axis)
            if before + after > 1 << 20:
                raise NotSupportedError(f"padding of {before} and {after} places")
            call.claim((before + extent + after,), _INDEX_BYTES)
            places = np.pad(np.arange(extent), (before, after), mode)  # type: ignore[call-overload]
            x = take(call, x, axis, places.tolist())
    return (x,)


def _pads(call: Call, x: Computed) -> list[tuple[int, int]]:
    """Places before and behind for each dimension; negative ones are cut off."""
    found = call.attributes.integers("pads") if call.version < 11 else call.integers(1, "pads")
    axes = call.integers(3, "axes") if call.version >= 18 else None
    axes = tuple(range(x.ndim)) if axes is None else tuple(call.axis(axis, x.ndim) for axis in axes)
    if found is None or len(found) != 2 * len(axes):
        raise BadParamError(f"pads {found} must be two numbers for each of the dimensions {list(axes)}")
    pads = [(0, 0)] * x.ndim
    for number, axis in enumerate(axes):
        pads[axis] = (found[number], found[number + len(axes)])
    return pads


RULES: Mapping[str, Rule] = {"Concat": _concat, "Gather": _gather, "Pad": _pad, "Slice": _slice, "Split": _split}
