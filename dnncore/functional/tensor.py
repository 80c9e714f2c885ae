"""Two tensors combined element by element, and tensors reduced over dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dnncore.descriptors import BinaryOperator, ReduceOperator, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.formats import like, with_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.functional.shapes import axes
from dnncore.problems import BinaryProblem, ReduceProblem
from dnncore.tensor import Tensor

__all__ = ["add", "amax", "amin", "div", "maximum", "mean", "minimum", "mul", "sub", "sum"]


@remembered
def _binary(operator: BinaryOperator, alpha: float, a: TensorDescriptor, b: TensorDescriptor) -> Operation:
    """(a, b) -> c, as large as both need."""
    ndim = max(a.ndim, b.ndim)
    a, b = with_leading(a, ndim), with_leading(b, ndim)
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError as error:
        raise BadParamError(f"shapes {a.shape} and {b.shape} differ where neither has an extent of 1") from error
    full = next((tensor for tensor in (a, b) if tensor.shape == shape), None)
    c = TensorDescriptor.packed(shape, a.dtype) if full is None else like(full)
    draft = Draft(2, c)
    draft.step(BinaryProblem(a, b, c, operator, alpha2=alpha), 0, 1, *draft.results)
    return draft.operation()


@remembered
def _with_number(
    operator: BinaryOperator, alpha: float, magnitude: float, sign: float, a: TensorDescriptor
) -> Operation:
    """(a) -> c, the number standing for a tensor that has it everywhere; in two parts, as 0 and -0 are equal."""
    c = like(a)
    draft = Draft(1, c)
    b = TensorDescriptor.packed((1,) * a.ndim, a.dtype)
    place = draft.filled(math.copysign(magnitude, sign), b)
    draft.step(BinaryProblem(a, b, c, operator, alpha2=alpha), 0, place, *draft.results)
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


@remembered
def _reduced(
    operator: ReduceOperator, dim: int | Sequence[int] | None, keepdim: bool, x: TensorDescriptor
) -> Operation:
    chosen = axes(dim, x.ndim)
    y = TensorDescriptor.packed(tuple(1 if axis in chosen else extent for axis, extent in enumerate(x.shape)), x.dtype)
    left = tuple(extent for axis, extent in enumerate(x.shape) if axis not in chosen)
    draft = Draft(1, y if keepdim else TensorDescriptor.packed(left or (1,), x.dtype))
    draft.step(ReduceProblem(x, y, operator), 0, *draft.results)
    return draft.operation()


def sum(input: Operand, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The sum over dimensions; [1] over all of them, unless they are kept.

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
