"""Two tensors combined element by element, or chosen from, and tensors reduced over dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dnncore.descriptors import BinaryOperator, ReduceOperator, TensorDescriptor
from dnncore.descriptors.settings import whole
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.formats import like, with_leading, without_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.functional.shapes import axes, axis
from dnncore.problems import BinaryProblem, ReduceProblem, TopKProblem, WhereProblem
from dnncore.tensor import Tensor

__all__ = [
    "add",
    "amax",
    "amin",
    "div",
    "eq",
    "fmod",
    "ge",
    "gt",
    "le",
    "logical_and",
    "logical_or",
    "logical_xor",
    "lt",
    "maximum",
    "mean",
    "minimum",
    "mul",
    "ne",
    "norm",
    "pow",
    "prod",
    "remainder",
    "sub",
    "sum",
    "topk",
    "where",
]


@remembered
def _binary(operator: BinaryOperator, alpha: float, a: TensorDescriptor, b: TensorDescriptor) -> Operation:
    """(a, b) -> c, as large as both need."""
    c, (a, b) = _combination(operator.result(a.dtype), a, b)
    draft = Draft(2, c)
    c = with_leading(c, 1)
    draft.step(BinaryProblem(a, b, c, operator, alpha2=alpha), 0, 1, *draft.results)
    return draft.operation()


def _combination(
    dtype: DType, *operands: TensorDescriptor, like_last: int = 0
) -> tuple[TensorDescriptor, list[TensorDescriptor]]:
    """A result, with as many dimensions as the operand that has most, and the operands as a problem takes them, at least [1].

    The result is in the memory format of the first operand of its shape, of the last `like_last` where that is not 0.
    """
    ndim = max(operand.ndim for operand in operands)
    full, shape = _broadcast(*operands, ndim=max(ndim, 1))
    return _large(dtype, shape, *full[-like_last:]) if ndim else TensorDescriptor.packed((), dtype), full


def _broadcast(*operands: TensorDescriptor, ndim: int) -> tuple[list[TensorDescriptor], tuple[int, ...]]:
    """Operands with so many dimensions, and the shape that all are broadcast to."""
    full = [with_leading(operand, ndim) for operand in operands]
    try:
        return full, np.broadcast_shapes(*(operand.shape for operand in full))
    except ValueError as error:
        shapes = " and ".join(str(operand.shape) for operand in full)
        raise BadParamError(f"shapes {shapes} differ where neither has an extent of 1") from error


def _large(dtype: DType, shape: tuple[int, ...], *operands: TensorDescriptor) -> TensorDescriptor:
    """A result, in the memory format of the first operand that has its shape."""
    full = next((operand for operand in operands if operand.shape == shape), None)
    return TensorDescriptor.packed(shape, dtype) if full is None else replace(like(full), dtype=dtype)


@remembered
def _with_number(
    operator: BinaryOperator, alpha: float, magnitude: float, sign: float, a: TensorDescriptor
) -> Operation:
    """(a) -> c, the number standing for a tensor that has it everywhere; in two parts, as 0 and -0 are equal."""
    c = replace(like(a), dtype=operator.result(a.dtype))
    draft = Draft(1, c)
    a, c = with_leading(a, 1), with_leading(c, 1)
    b = TensorDescriptor.packed((1,) * a.ndim, a.dtype)
    place = draft.filled(math.copysign(magnitude, sign), b)
    draft.step(BinaryProblem(a, b, c, operator, alpha2=alpha), 0, place, *draft.results)
    return draft.operation()


@remembered
def _where(condition: TensorDescriptor, a: TensorDescriptor, b: TensorDescriptor) -> Operation:
    """(condition, a, b) -> c."""
    c, (condition, a, b) = _combination(a.dtype, condition, a, b, like_last=2)
    draft = Draft(3, c)
    c = with_leading(c, 1)
    draft.step(WhereProblem(condition, a, b, c), 0, 1, 2, *draft.results)
    return draft.operation()


def _combined(input: Operand, other: Operand | float, operator: BinaryOperator, alpha: float = 1.0) -> Tensor:
    if isinstance(other, int | float | np.number):
        value = float(other)
        return compute(_with_number, (operator, alpha, abs(value), math.copysign(1, value)), input)[0]
    return compute(_binary, (operator, alpha), input, other)[0]


def add(input: Operand, other: Operand | float, *, alpha: float = 1) -> Tensor:
    """input + alpha * other; where one has an extent of 1, or fewer dimensions, it is repeated, in all functions of two tensors.

    Args:
        input: A tensor.
        other: A tensor of the same dtype, or a number, which is rounded to that.
        alpha: Factor of `other`.
    """
    return _combined(input, other, BinaryOperator.ADD, alpha)


def sub(input: Operand, other: Operand | float, *, alpha: float = 1) -> Tensor:
    """input - alpha * other; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.SUB, alpha)


def mul(input: Operand, other: Operand | float) -> Tensor:
    """input * other; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.MUL)


def div(input: Operand, other: Operand | float) -> Tensor:
    """input / other; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.DIV)


def maximum(input: Operand, other: Operand | float) -> Tensor:
    """The larger of two elements, NaN where one is; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.MAX)


def minimum(input: Operand, other: Operand | float) -> Tensor:
    """The smaller of two elements, NaN where one is; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.MIN)


def eq(input: Operand, other: Operand | float) -> Tensor:
    """Where two elements are equal, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.EQUAL)


def ne(input: Operand, other: Operand | float) -> Tensor:
    """Where two elements differ, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.NOT_EQUAL)


def lt(input: Operand, other: Operand | float) -> Tensor:
    """Where input is less than other, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.LESS)


def le(input: Operand, other: Operand | float) -> Tensor:
    """Where input is not more than other, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.LESS_EQUAL)


def gt(input: Operand, other: Operand | float) -> Tensor:
    """Where input is more than other, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.GREATER)


def ge(input: Operand, other: Operand | float) -> Tensor:
    """Where input is not less than other, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.GREATER_EQUAL)


def logical_and(input: Operand, other: Operand) -> Tensor:
    """Where neither element is 0, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.AND)


def logical_or(input: Operand, other: Operand) -> Tensor:
    """Where one of two elements is not 0, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.OR)


def logical_xor(input: Operand, other: Operand) -> Tensor:
    """Where one of two elements is 0 and the other is not, bool; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.XOR)


def fmod(input: Operand, other: Operand | float) -> Tensor:
    """What a division towards 0 leaves; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.FMOD)


def remainder(input: Operand, other: Operand | float) -> Tensor:
    """What a division leaves that goes down, with the sign of other; otherwise as `add`."""
    return _combined(input, other, BinaryOperator.MOD)


def pow(input: Operand, exponent: Operand | float) -> Tensor:
    """input to the power of exponent; otherwise as `add`."""
    return _combined(input, exponent, BinaryOperator.POW)


def where(condition: Operand, input: Operand, other: Operand) -> Tensor:
    """input where the condition, bool, holds, else other; all three are broadcast."""
    return compute(_where, (), condition, input, other)[0]


@remembered
def _reduced(
    operator: ReduceOperator, dim: int | Sequence[int] | None, keepdim: bool, given: TensorDescriptor
) -> Operation:
    x = with_leading(given, 1)
    chosen = axes(dim, given.ndim) if given.ndim else _only(dim)
    y = TensorDescriptor.packed(tuple(1 if axis in chosen else extent for axis, extent in enumerate(x.shape)), x.dtype)
    left = tuple(extent for axis, extent in enumerate(x.shape) if axis not in chosen)
    draft = Draft(1, y if keepdim and given.ndim else TensorDescriptor.packed(left, x.dtype))
    draft.step(ReduceProblem(x, y, operator), 0, *draft.results)
    return draft.operation()


def _only(dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """The dimension of [1], as which a tensor without dimensions is reduced; checked."""
    axes(dim, 1)
    return (0,)


def sum(input: Operand, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The sum over dimensions; without dimensions over all of them, unless they are kept.

    Args:
        input: A tensor.
        dim: One dimension or several; None for all.
        keepdim: Whether they stay, with an extent of 1.
    """
    return compute(_reduced, (ReduceOperator.ADD, dim, keepdim), input)[0]


def mean(input: Operand, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The mean over dimensions; otherwise as `sum`."""
    return compute(_reduced, (ReduceOperator.AVG, dim, keepdim), input)[0]


def amax(input: Operand, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The largest element over dimensions, NaN where there is one; otherwise as `sum`."""
    return compute(_reduced, (ReduceOperator.MAX, dim, keepdim), input)[0]


def amin(input: Operand, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The smallest element over dimensions, NaN where there is one; otherwise as `sum`."""
    return compute(_reduced, (ReduceOperator.MIN, dim, keepdim), input)[0]


def prod(input: Operand, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The product over one dimension, or over all; otherwise as `sum`."""
    return compute(_reduced, (ReduceOperator.MUL, dim, keepdim), input)[0]


def norm(
    input: Operand, p: float | str = "fro", dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """A norm over dimensions, of everything in them as one vector; otherwise as `sum`.

    Args:
        input: A tensor.
        p: 2 or "fro", the root of the sum of squares; 1, the sum of absolute values; or infinity, the largest of them.
        dim: As of `sum`.
        keepdim: As of `sum`.

    Raises:
        BadParamError: another p.
    """
    operator = _NORMS.get(p) if isinstance(p, (str, int, float)) else None
    if operator is None:
        raise BadParamError(f"p {p!r} is none of {', '.join(map(repr, _NORMS))}")
    return compute(_reduced, (operator, dim, keepdim), input)[0]


_NORMS: dict[float | str, ReduceOperator] = {
    "fro": ReduceOperator.NORM2,
    2: ReduceOperator.NORM2,
    1: ReduceOperator.NORM1,
    math.inf: ReduceOperator.AMAX,
}


@remembered
def _top_k(k: int, dim: int, given: TensorDescriptor) -> Operation:
    """(x) -> values, indices."""
    along, count, x = axis(dim, given.ndim), whole(k, "k"), with_leading(given, 1)
    if not 0 <= count <= x.shape[along]:
        raise BadParamError(f"k {count} is not from 0 to {x.shape[along]}, the extent of dimension {along}")
    values = like(x.with_shape((*x.shape[:along], count, *x.shape[along + 1 :])))
    indices = replace(values, dtype=DType.INT32)
    draft = Draft(1, *((values, indices) if given.ndim or not count else map(without_leading, (values, indices))))
    draft.step(TopKProblem(x, values, indices, along), 0, *draft.results)
    return draft.operation()


def topk(
    input: Operand,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """The k largest elements along a dimension, largest first, and where they are (int32); NaN comes before all numbers.

    Of equal elements the first comes first.

    Args:
        input: A tensor.
        k: How many.
        dim: The dimension.
        largest: True; the smallest are not computed.
        sorted: Either; they always are.

    Raises:
        BadParamError: the dimension has fewer elements, or the smallest are asked for.
    """
    if not largest:
        raise BadParamError(
            "largest is False: the smallest elements are not computed; give topk the negative of the tensor"
        )
    values, indices = compute(_top_k, (k, dim), input)
    return values, indices
