"""Functions of one tensor, element by element."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor, UnaryOperator
from dnncore.formats import like
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.problems import UnaryProblem
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
def _unary(operator: UnaryOperator, x: TensorDescriptor) -> Operation:
    y = like(x)
    draft = Draft(1, y)
    draft.step(UnaryProblem(x, y, operator), 0, *draft.results)
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


def softplus(input: Operand) -> Tensor:
    """log(1 + exp(x))."""
    return _of(input, UnaryOperator.SOFTPLUS)


def sqrt(input: Operand) -> Tensor:
    """The square root; NaN below 0."""
    return _of(input, UnaryOperator.SQRT)


def square(input: Operand) -> Tensor:
    """x^2."""
    return _of(input, UnaryOperator.SQUARE)
