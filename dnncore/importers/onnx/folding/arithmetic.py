"""Arithmetic, comparisons, products of matrices and sums, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.folding.fold import Fold, Folding, axis_of

__all__ = ["FOLDS"]


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


def _where(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(condition, a, b)


def _many(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Fold:
    """Of any number of operands."""

    def fold(node: Folding) -> Sequence[np.ndarray]:
        total = node[0]
        for index in range(1, len(node.inputs)):
            node.claim(np.broadcast_shapes(total.shape, node[index].shape))
            total = function(total, node[index])
        return (total,)

    return fold


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


def _cumulative_sum(node: Folding) -> Sequence[np.ndarray]:
    x, axis = node[0], axis_of(int(node[1].reshape(())), node[0].ndim)
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


FOLDS: Mapping[str, Fold] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add),
    "And": _elementwise(np.logical_and),
    "Ceil": _elementwise(np.ceil),
    "Clip": _clip,
    "Cos": _elementwise(np.cos),
    "CumSum": _cumulative_sum,
    "Div": _elementwise(_divide),
    "Equal": _elementwise(np.equal),
    "Erf": _elementwise(_erf),
    "Exp": _elementwise(np.exp),
    "Floor": _elementwise(np.floor),
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
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
    "Reciprocal": _elementwise(np.reciprocal),
    "ReduceL2": _reduction(_norm, 18),
    "ReduceMax": _reduction(np.max, 18),
    "ReduceMean": _reduction(np.mean, 18),
    "ReduceMin": _reduction(np.min, 18),
    "ReduceProd": _reduction(np.prod, 18),
    "ReduceSum": _reduction(np.sum, 13),
    "Relu": _elementwise(_relu),
    "Round": _elementwise(np.rint),
    "Sigmoid": _elementwise(_sigmoid),
    "Sign": _elementwise(np.sign),
    "Sin": _elementwise(np.sin),
    "Sqrt": _elementwise(np.sqrt),
    "Sub": _elementwise(np.subtract),
    "Sum": _many(np.add),
    "Where": _elementwise(_where),
    "Xor": _elementwise(np.logical_xor),
}
