"""Filling, scaling, transforming, adding, combining and reducing tensors."""

from __future__ import annotations

from dnncore.descriptors import BinaryOperator, ReduceOperator, UnaryOperator
from dnncore.descriptors.settings import member, number
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.problems import (
    AddProblem,
    BinaryProblem,
    FillProblem,
    ReduceProblem,
    SumProblem,
    UnaryProblem,
    WhereProblem,
)
from dnncore.tensor import Tensor

__all__ = ["add", "binary", "reduce", "scale_tensor", "set_tensor", "sum_to", "transform", "unary", "where"]


def set_tensor(handle: Handle, value: float, y: Tensor) -> None:
    """y = value in every element; gaps between elements keep what they hold. Any dtype; integers are rounded and saturated."""
    handle.execute(FillProblem, (y.descriptor,), number(value, "value"), (), 0.0, (y,))


def scale_tensor(handle: Handle, alpha: float, y: Tensor) -> None:
    """y = alpha * y."""
    add(handle, alpha, y, 0.0, y)


def add(handle: Handle, alpha: float, a: Tensor, beta: float, c: Tensor) -> None:
    """c = alpha * a + beta * c; each extent of a is that of c or 1, as a bias [1, K, 1, 1] is.

    With extents [1, C, H, W], [1, 1, H, W] and [1, C, 1, 1] it is cuDNN v2's SAME_CHW, SAME_HW and SAME_C.
    """
    handle.execute(AddProblem, (a.descriptor, c.descriptor), alpha, (a,), beta, (c,))


def transform(handle: Handle, alpha: float, x: Tensor, beta: float, y: Tensor) -> None:
    """y = alpha * x + beta * y for equal shapes: a copy from one layout, or one dtype, to another."""
    if x.shape != y.shape:
        raise BadParamError(f"x has shape {x.shape} but y has {y.shape}")
    add(handle, alpha, x, beta, y)


def unary(handle: Handle, operator: UnaryOperator | str, alpha: float, x: Tensor, beta: float, y: Tensor) -> None:
    """y = alpha * operator(x) + beta * y, element by element; y may be x."""
    arguments = (x.descriptor, y.descriptor, member(UnaryOperator, operator))
    handle.execute(UnaryProblem, arguments, alpha, (x,), beta, (y,))


def binary(
    handle: Handle,
    operator: BinaryOperator | str,
    alpha1: float,
    a: Tensor,
    alpha2: float,
    b: Tensor,
    beta: float,
    c: Tensor,
) -> None:
    """c = operator(alpha1 * a, alpha2 * b) + beta * c; each extent of a and b is that of c or 1; c may be a or b.

    Comparisons, AND, OR and XOR need a c of BOOL, all others the element type of a and b, which may be an integer.
    """
    chosen, factors = member(BinaryOperator, operator), (number(alpha1, "alpha1"), number(alpha2, "alpha2"))
    arguments = (a.descriptor, b.descriptor, c.descriptor, chosen, *factors)
    handle.execute(BinaryProblem, arguments, 1.0, (a, b), beta, (c,))


def where(handle: Handle, alpha: float, condition: Tensor, a: Tensor, b: Tensor, beta: float, c: Tensor) -> None:
    """c = alpha * (a where the condition holds, else b) + beta * c; each extent of the three is that of c or 1; c may be a or b.

    Args:
        condition: BOOL; a, b and c have any one element type.
    """
    arguments = (condition.descriptor, a.descriptor, b.descriptor, c.descriptor)
    handle.execute(WhereProblem, arguments, alpha, (condition, a, b), beta, (c,))


def sum_to(handle: Handle, alpha: float, x: Tensor, beta: float, y: Tensor) -> None:
    """y = x summed over the dimensions in which y has extent 1; y has x's dtype or, unrounded, the type that it is computed in."""
    handle.execute(SumProblem, (x.descriptor, y.descriptor), alpha, (x,), beta, (y,))


def reduce(
    handle: Handle,
    operator: ReduceOperator | str,
    alpha: float,
    x: Tensor,
    beta: float,
    y: Tensor,
    indices: Tensor | None = None,
) -> None:
    """y = x reduced over the dimensions in which y has extent 1.

    Args:
        indices: int32, shape of y, for MIN, MAX and AMAX: which element it was, counted in row-major order over the dimensions that
            are reduced; of equals the first, -1 where there is none.
    """
    found = None if indices is None else indices.descriptor
    arguments = (x.descriptor, y.descriptor, member(ReduceOperator, operator), found)
    handle.execute(ReduceProblem, arguments, alpha, (x,), beta, (y,) if indices is None else (y, indices))
