"""Operators computed on the host, in NumPy, where all operands are known: arithmetic on shapes, and constants made of constants.

What is here need not exist on any device. Every array is claimed from a budget before it is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.attributes import Attributes
from dnncore.importers.onnx.limits import Budget
from dnncore.importers.onnx.tensors import dtype_of

__all__ = ["FOLDS", "Folding"]


class Folding:
    """A node and its operands. Owned by one thread; not checked.

    Args:
        version: Opset that last changed the operator.
        attributes: As the file has them.
        inputs: Arrays; None for one that is left out.
        num_outputs: How many results it has.
        budget: For what is made.
    """

    def __init__(
        self,
        version: int,
        attributes: Attributes,
        inputs: Sequence[np.ndarray | None],
        num_outputs: int,
        budget: Budget,
    ) -> None:
        self.version = version
        self.attributes = attributes
        self.inputs = tuple(inputs)
        self.num_outputs = num_outputs
        self.budget = budget

    def __getitem__(self, index: int) -> np.ndarray:
        found = self.optional(index)
        if found is None:
            raise BadParamError(f"input {index} is left out")
        return found

    def optional(self, index: int) -> np.ndarray | None:
        """An operand, None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int, attribute: str, since: int) -> tuple[int, ...] | None:
        """Whole numbers that are an attribute in models before an opset, and an operand since."""
        if self.version < since:
            return self.attributes.integers(attribute)
        found = self.optional(index)
        return None if found is None else tuple(int(number) for number in found.reshape(-1))

    def claim(self, shape: Sequence[int], itemsize: int = 8) -> None:
        """Take the room for a result."""
        self.budget.claim(shape, itemsize)


Fold = Callable[[Folding], Sequence[np.ndarray]]


def _elementwise(function: Callable[..., np.ndarray]) -> Fold:
    def fold(node: Folding) -> Sequence[np.ndarray]:
        operands = [node[index] for index in range(len(node.inputs))]
        if "broadcast" in node.attributes or "axis" in node.attributes:
            raise NotSupportedError("broadcasting as before opset 7 is not folded")
        node.claim(np.broadcast_shapes(*(array.shape for array in operands)))
        return (np.asarray(function(*operands)),)

    return fold


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whole numbers are divided towards zero."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    if not b.all():
        raise BadParamError("division by zero")
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype))


def _modulo(node: Folding) -> Sequence[np.ndarray]:
    a, b = node[0], node[1]
    node.claim(np.broadcast_shapes(a.shape, b.shape))
    if a.dtype.kind in "iu" and not b.all():
        raise BadParamError("division by zero")
    return (np.fmod(a, b) if node.attributes.integer("fmod", 0) else np.mod(a, b),)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)) if x.size else x


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray((1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype))


def _relu(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x, x.dtype.type(0)))


def _many(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Fold:
    """Of any number of operands."""

    def fold(node: Folding) -> Sequence[np.ndarray]:
        total = node[0]
        for index in range(1, len(node.inputs)):
            node.claim(np.broadcast_shapes(total.shape, node[index].shape))
            total = function(total, node[index])
        return (total,)

    return fold


def _cast(node: Folding) -> Sequence[np.ndarray]:
    x, dtype = node[0], dtype_of(node.attributes.integer("to", 0))
    node.attributes.integer("saturate", 1)
    node.attributes.text("round_mode", "up")
    node.claim(x.shape, dtype.itemsize)
    return (x.astype(dtype),)


def _cast_like(node: Folding) -> Sequence[np.ndarray]:
    node.claim(node[0].shape, node[1].dtype.itemsize)
    return (node[0].astype(node[1].dtype),)


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


def _gather(node: Folding) -> Sequence[np.ndarray]:
    x, indices, axis = node[0], node[1], node.attributes.integer("axis", 0)
    axis = _axis(axis, x.ndim)
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


def _cumulative_sum(node: Folding) -> Sequence[np.ndarray]:
    x, axis = node[0], _axis(int(node[1].reshape(())), node[0].ndim)
    exclusive, reverse = (bool(node.attributes.integer(name, 0)) for name in ("exclusive", "reverse"))
    node.claim(x.shape, x.itemsize)
    turned = np.moveaxis(np.flip(x, axis) if reverse else x, axis, 0)
    sums = np.zeros_like(turned)
    if exclusive:
        sums[1:] = np.cumsum(turned[:-1], 0, dtype=x.dtype)
    else:
        sums[:] = np.cumsum(turned, 0, dtype=x.dtype)
    sums = np.moveaxis(sums, 0, axis)
    return (np.flip(sums, axis) if reverse else sums,)


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise BadParamError(f"there is no dimension {axis} of {ndim}")
    return axis % ndim


def _concat(node: Folding) -> Sequence[np.ndarray]:
    parts = [node[index] for index in range(len(node.inputs))]
    node.claim((sum(part.size for part in parts),), parts[0].itemsize)
    return (np.concatenate(parts, _axis(node.attributes.integer("axis", 1), parts[0].ndim)),)


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
    axis = axis if axis == x.ndim else _axis(axis, x.ndim)
    return (x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)


def _transpose(node: Folding) -> Sequence[np.ndarray]:
    return (np.transpose(node[0], node.attributes.integers("perm")),)


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
        axis = _axis(axis, len(shape))
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
    x, axis = node[0], _axis(node.attributes.integer("axis", 0), node[0].ndim)
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


def _tile(node: Folding) -> Sequence[np.ndarray]:
    x, repeats = node[0], _shape(node[1])
    if len(repeats) != x.ndim:
        raise BadParamError(f"{len(repeats)} repeats for {x.ndim} dimensions")
    node.claim([extent * count for extent, count in zip(x.shape, repeats, strict=True)], x.itemsize)
    return (np.tile(x, repeats),)


def _where(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(condition, a, b)


def _matmul(node: Folding) -> Sequence[np.ndarray]:
    a, b = node[0], node[1]
    if not a.ndim or not b.ndim:
        raise BadParamError("a matrix product of numbers")
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    node.claim((*lead, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ())))
    node.claim((*lead, *a.shape[-2:], *(b.shape[-1:] if b.ndim > 1 else ())), 1)  # and so much arithmetic
    return (np.matmul(a, b),)


def _reduction(function: Callable[..., np.ndarray], since: int) -> Fold:
    def fold(node: Folding) -> Sequence[np.ndarray]:
        x, axes = node[0], node.integers(1, "axes", since)
        keep = bool(node.attributes.integer("keepdims", 1))
        if not axes and node.attributes.integer("noop_with_empty_axes", 0):
            return (x,)
        over = None if not axes else tuple(axes)
        return (np.asarray(function(x, axis=over, keepdims=keep)).astype(x.dtype),)

    return fold


def _norm(x: np.ndarray, axis: tuple[int, ...] | None, *, keepdims: bool) -> np.ndarray:
    return np.asarray(np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims)))


def _identity(node: Folding) -> Sequence[np.ndarray]:
    return (node[0],)


def _clip(node: Folding) -> Sequence[np.ndarray]:
    x = node[0]
    if node.version < 11:
        bounds: list[np.ndarray | float] = [
            node.attributes.real("min", -math.inf), node.attributes.real("max", math.inf)
        ]  # fmt: skip
    else:
        bounds = [found for found in (node.optional(1), node.optional(2)) if found is not None]
        if len(bounds) < 2:
            low = node.optional(1)
            return (x if not bounds else np.maximum(x, bounds[0]) if low is not None else np.minimum(x, bounds[0]),)
    return (np.minimum(np.maximum(x, bounds[0]), bounds[1]).astype(x.dtype),)


FOLDS: Mapping[str, Fold] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add),
    "And": _elementwise(np.logical_and),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _elementwise(np.ceil),
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Cos": _elementwise(np.cos),
    "CumSum": _cumulative_sum,
    "Div": _elementwise(_divide),
    "Dropout": _identity,
    "Equal": _elementwise(np.equal),
    "Erf": _elementwise(_erf),
    "Exp": _elementwise(np.exp),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _elementwise(np.floor),
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Identity": _identity,
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "Log": _elementwise(np.log),
    "MatMul": _matmul,
    "Max": _many(np.maximum),
    "Min": _many(np.minimum),
    "Mod": _modulo,
    "Mul": _elementwise(np.multiply),
    "Neg": _elementwise(np.negative),
    "Not": _elementwise(np.logical_not),
    "Or": _elementwise(np.logical_or),
    "Pow": _elementwise(_power),
    "Range": _range,
    "Reciprocal": _elementwise(np.reciprocal),
    "ReduceL2": _reduction(_norm, 18),
    "ReduceMax": _reduction(np.max, 18),
    "ReduceMean": _reduction(np.mean, 18),
    "ReduceMin": _reduction(np.min, 18),
    "ReduceProd": _reduction(np.prod, 18),
    "ReduceSum": _reduction(np.sum, 13),
    "Relu": _elementwise(_relu),
    "Reshape": _reshape,
    "Round": _elementwise(np.rint),
    "ScatterND": _scatter_nd,
    "Sigmoid": _elementwise(_sigmoid),
    "Sign": _elementwise(np.sign),
    "Sin": _elementwise(np.sin),
    "Slice": _slice,
    "Split": _split,
    "Sqrt": _elementwise(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _elementwise(np.subtract),
    "Sum": _many(np.add),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _elementwise(_where),
    "Xor": _elementwise(np.logical_xor),
}
"""By operator. Shape, Size and Constant are not among them: they know more than their operands' elements."""
