"""Filling, adding, combining, summing, reducing and multiplying tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dnncore.descriptors import BinaryOperator, ReduceOperator, UnaryOperator
from dnncore.problems import (
    AddProblem,
    BinaryProblem,
    FillProblem,
    MatmulProblem,
    ReduceProblem,
    SumProblem,
    UnaryProblem,
    WhereProblem,
)
from dnncore.reference.launch import Array, ReferenceAlgorithm, exact_and_fast, in_parts

__all__ = ["ADD", "BINARY", "FILL", "MATMUL", "REDUCE", "SUM", "UNARY", "WHERE"]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _fill(problem: FillProblem) -> Array:
    return np.ones(problem.y.shape)


def _add(_problem: AddProblem, a: Array) -> Array:
    return a


_UNARY: dict[UnaryOperator, Callable[[Array], Array]] = {
    UnaryOperator.ABS: np.abs,
    UnaryOperator.CEIL: np.ceil,
    UnaryOperator.COS: np.cos,
    UnaryOperator.ERF: lambda x: _erf(x) if x.size else x,
    UnaryOperator.EXP: np.exp,
    UnaryOperator.FLOOR: np.floor,
    UnaryOperator.LOG: np.log,
    UnaryOperator.NEG: np.negative,
    UnaryOperator.RECIPROCAL: np.reciprocal,
    UnaryOperator.ROUND: np.rint,
    UnaryOperator.RSQRT: lambda x: 1 / np.sqrt(x),
    UnaryOperator.SIGN: np.sign,
    UnaryOperator.SIN: np.sin,
    UnaryOperator.SOFTPLUS: lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    UnaryOperator.SQRT: np.sqrt,
    UnaryOperator.SQUARE: np.square,
}


def _unary(problem: UnaryProblem, x: Array) -> Array:
    return _UNARY[problem.operator](x)


_BINARY = {
    BinaryOperator.ADD: np.add,
    BinaryOperator.SUB: np.subtract,
    BinaryOperator.MUL: np.multiply,
    BinaryOperator.DIV: np.divide,
    BinaryOperator.MIN: np.minimum,
    BinaryOperator.MAX: np.maximum,
    BinaryOperator.FMOD: np.fmod,
    BinaryOperator.MOD: np.mod,
    BinaryOperator.POW: np.power,
    BinaryOperator.EQUAL: np.equal,
    BinaryOperator.NOT_EQUAL: np.not_equal,
    BinaryOperator.LESS: np.less,
    BinaryOperator.LESS_EQUAL: np.less_equal,
    BinaryOperator.GREATER: np.greater,
    BinaryOperator.GREATER_EQUAL: np.greater_equal,
    BinaryOperator.AND: np.logical_and,
    BinaryOperator.OR: np.logical_or,
    BinaryOperator.XOR: np.logical_xor,
}


def _binary(problem: BinaryProblem, a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        a, b = a.astype(np.float64), b.astype(np.float64)  # what they would overflow in is saturated
    first, second = (x if alpha == 1 else alpha * x for alpha, x in ((problem.alpha1, a), (problem.alpha2, b)))
    found: Array = _BINARY[problem.operator](first, second)
    is_quotient = problem.operator is BinaryOperator.DIV and not problem.c.dtype.is_floating
    return np.trunc(found) if is_quotient else found


def _where(_problem: WhereProblem, condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition != 0, a, b)


def _sum(problem: SumProblem, x: Array) -> Array:
    axes = tuple(axis for axis, extent in enumerate(problem.y.shape) if extent == 1)
    return x.sum(axes, keepdims=True, dtype=np.float64) if axes else x


def _reduce(problem: ReduceProblem, x: Array) -> Array | tuple[Array, ...]:
    ndim, y = x.ndim, problem.y
    axes = [axis for axis in range(ndim) if y.shape[axis] == 1]
    rows = np.moveaxis(x, axes, range(ndim - len(axes), ndim))
    rows = rows.reshape(y.size, math.prod(x.shape[axis] for axis in axes))
    if problem.operator.finds_an_element:
        value, index = _found(problem.operator, rows)
        return (value.reshape(y.shape), index.reshape(y.shape)) if problem.indices else value.reshape(y.shape)
    match problem.operator:
        case ReduceOperator.ADD:
            result = rows.sum(1)
        case ReduceOperator.AVG:
            result = rows.sum(1) / rows.shape[1] if rows.shape[1] else np.full(len(rows), np.nan)
        case ReduceOperator.MUL:
            result = rows.prod(1)
        case ReduceOperator.MUL_NO_ZEROS:
            result = np.where(rows == 0, 1.0, rows).prod(1)
        case ReduceOperator.NORM1:
            result = np.abs(rows).sum(1)
        case _:
            result = np.sqrt((rows * rows).sum(1))
    reduced: Array = result.reshape(y.shape)
    return reduced


def _found(operator: ReduceOperator, rows: Array) -> tuple[Array, Array]:
    """Value and index of each row's element."""
    if operator is ReduceOperator.AMAX:
        rows = np.abs(rows)
    if not rows.shape[1]:
        empty = np.inf if operator is ReduceOperator.MIN else -np.inf
        return np.full(len(rows), empty), np.full(len(rows), -1.0)
    index = (np.argmin if operator is ReduceOperator.MIN else np.argmax)(rows, 1)
    return rows[np.arange(len(rows)), index], index.astype(np.float64)


def _matmul(_problem: MatmulProblem, a: Array, b: Array) -> Array:
    return a @ b


FILL = (ReferenceAlgorithm("fill", _fill),)
ADD = exact_and_fast("broadcast", _add, in_parts(_add, 0))
UNARY = exact_and_fast("elementwise", _unary, in_parts(_unary, 0))
BINARY = exact_and_fast("broadcast", _binary, in_parts(_binary, 0))
WHERE = (ReferenceAlgorithm("broadcast", _where),)
SUM = exact_and_fast("axes", _sum)
REDUCE = (ReferenceAlgorithm("axes", _reduce),)
MATMUL = exact_and_fast("blas", _matmul)
