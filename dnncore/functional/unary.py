"""Functions of one tensor, element by element."""

from __future__ import annotations

from dataclasses import replace

from dnncore.descriptors import BinaryOperator, TensorDescriptor, UnaryOperator
from dnncore.descriptors.settings import number
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.formats import like, with_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.problems import AddProblem, BinaryProblem, UnaryProblem, WhereProblem
from dnncore.tensor import Tensor

__all__ = [
    "abs",
    "ceil",
    "cos",
    "erf",
    "exp",
    "floor",
    "log",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "softplus",
    "sqrt",
    "square",
]


@remembered
def _unary(operator: UnaryOperator, given: TensorDescriptor) -> Operation:
    x, draft = with_leading(given, 1), Draft(1, like(given))
    draft.step(UnaryProblem(x, like(x), operator), 0, *draft.results)
    return draft.operation()


def _of(input: Operand, operator: UnaryOperator) -> Tensor:
    return compute(_unary, (operator,), input)[0]


def abs(input: Operand) -> Tensor:
    """The absolute value."""
    return _of(input, UnaryOperator.ABS)


def ceil(input: Operand) -> Tensor:
    """The smallest whole number that is not below x."""
    return _of(input, UnaryOperator.CEIL)


def cos(input: Operand) -> Tensor:
    """The cosine of an angle in radians."""
    return _of(input, UnaryOperator.COS)


def erf(input: Operand) -> Tensor:
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return _of(input, UnaryOperator.ERF)


def exp(input: Operand) -> Tensor:
    """e^x."""
    return _of(input, UnaryOperator.EXP)


def floor(input: Operand) -> Tensor:
    """The largest whole number that is not above x."""
    return _of(input, UnaryOperator.FLOOR)


def log(input: Operand) -> Tensor:
    """The natural logarithm."""
    return _of(input, UnaryOperator.LOG)


def neg(input: Operand) -> Tensor:
    """-x."""
    return _of(input, UnaryOperator.NEG)


def reciprocal(input: Operand) -> Tensor:
    """1 / x."""
    return _of(input, UnaryOperator.RECIPROCAL)


def round(input: Operand) -> Tensor:
    """The nearest whole number, of two the even one."""
    return _of(input, UnaryOperator.ROUND)


def rsqrt(input: Operand) -> Tensor:
    """1 / sqrt(x)."""
    return _of(input, UnaryOperator.RSQRT)


def sign(input: Operand) -> Tensor:
    """-1, 0 or 1."""
    return _of(input, UnaryOperator.SIGN)


def sin(input: Operand) -> Tensor:
    """The sine of an angle in radians."""
    return _of(input, UnaryOperator.SIN)


@remembered
def _softplus(beta: float, threshold: float, given: TensorDescriptor) -> Operation:
    """x -> y, in the compute type between its ends: where beta x > threshold that is x, elsewhere the operator's."""
    x, wide = with_leading(given, 1), given.dtype.compute
    scaled = like(replace(x, dtype=wide))
    draft = Draft(1, like(given))
    at, soft = draft.scratch(scaled), draft.scratch(scaled)
    draft.step(AddProblem(x, scaled), 0, at, alpha=beta)
    draft.step(UnaryProblem(scaled, scaled, UnaryOperator.SOFTPLUS), at, soft)
    limit = TensorDescriptor.packed((1,) * x.ndim, wide)
    is_large = replace(scaled, dtype=DType.BOOL)
    large = draft.scratch(is_large)
    draft.step(
        BinaryProblem(scaled, limit, is_large, BinaryOperator.GREATER), at, draft.filled(threshold, limit), large
    )
    draft.step(WhereProblem(is_large, scaled, scaled, scaled), large, at, soft, soft)
    draft.step(AddProblem(scaled, like(x)), soft, *draft.results, alpha=1 / beta)
    return draft.operation()


def softplus(input: Operand, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x where beta x > threshold.

    Args:
        input: Any shape.
        beta: How steep it is; not 0.
        threshold: From where on it is x: with the usual one, in less than float64, what that leaves out is below rounding, and it
            is one launch.

    Raises:
        BadParamError: beta is 0.
    """
    beta, threshold = number(beta, "beta"), number(threshold, "threshold")
    if not beta:
        raise BadParamError("beta is 0, by which softplus would be divided")
    return compute(_softplus_of, (beta, threshold), input)[0]


def _softplus_of(beta: float, threshold: float, x: TensorDescriptor) -> Operation:
    if beta == 1 and threshold >= _USUAL_THRESHOLD and x.dtype is not DType.FLOAT64:
        return _unary(UnaryOperator.SOFTPLUS, x)
    return _softplus(beta, threshold, x)


_USUAL_THRESHOLD = 20
"""Beyond it log(1 + exp(x)) is x to within 1.1e-10 of it; half a unit of float32's last place is 6.0e-8."""


def sqrt(input: Operand) -> Tensor:
    """The square root; NaN below 0."""
    return _of(input, UnaryOperator.SQRT)


def square(input: Operand) -> Tensor:
    """x^2."""
    return _of(input, UnaryOperator.SQUARE)
