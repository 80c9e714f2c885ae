"""Operators of element-wise and reducing tensor operations."""

from __future__ import annotations

from enum import Enum

from dnncore.dtypes import DType
from dnncore.errors import BadParamError

__all__ = ["BinaryOperator", "ReduceOperator", "UnaryOperator"]


class UnaryOperator(Enum):
    """What becomes of one element. NaN stays NaN, and where a function is not defined it gives NaN.

    ROUND goes to the nearest whole number, of two to the even one; SIGN is -1, 0 or 1; RSQRT is 1 / sqrt(x), SOFTPLUS
    log(1 + exp(x)), LOG the natural logarithm. Angles are in radians.

    Source: the pointwise modes of cuDNN 8, and ONNX.
    """

    ABS = "abs"
    CEIL = "ceil"
    COS = "cos"
    ERF = "erf"
    EXP = "exp"
    FLOOR = "floor"
    LOG = "log"
    NEG = "neg"
    RECIPROCAL = "reciprocal"
    ROUND = "round"
    RSQRT = "rsqrt"
    SIGN = "sign"
    SIN = "sin"
    SOFTPLUS = "softplus"
    SQRT = "sqrt"
    SQUARE = "square"


class BinaryOperator(Enum):
    """What is done with two elements. The minimum or maximum of anything and NaN is NaN.

    DIV of integers goes towards 0. MOD is what a division that goes down leaves, which has the sign of the divisor; FMOD what one
    that goes towards 0 leaves. POW is a to the power of b. Comparisons give BOOL, as do AND, OR and XOR of what is not 0.
    """

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MIN = "min"
    MAX = "max"
    FMOD = "fmod"
    MOD = "mod"
    POW = "pow"
    EQUAL = "equal"
    NOT_EQUAL = "not_equal"
    LESS = "less"
    LESS_EQUAL = "less_equal"
    GREATER = "greater"
    GREATER_EQUAL = "greater_equal"
    AND = "and"
    OR = "or"
    XOR = "xor"

    def result(self, dtype: DType) -> DType:
        """Element type of what becomes of two elements of one type.

        Raises:
            BadParamError: arithmetic on BOOL.
        """
        if self in _PREDICATES:
            return DType.BOOL
        if dtype is DType.BOOL:
            names = ", ".join(sorted(operator.value for operator in _PREDICATES))
            raise BadParamError(f"{self.value} of bool is not supported; {names} are")
        return dtype


_PREDICATES = frozenset(
    {
        BinaryOperator.EQUAL,
        BinaryOperator.NOT_EQUAL,
        BinaryOperator.LESS,
        BinaryOperator.LESS_EQUAL,
        BinaryOperator.GREATER,
        BinaryOperator.GREATER_EQUAL,
        BinaryOperator.AND,
        BinaryOperator.OR,
        BinaryOperator.XOR,
    }
)


class ReduceOperator(Enum):
    """What becomes of many elements.

    ADD, MUL and AVG are sum, product and mean; NORM1 is the sum of absolute values, NORM2 the root of the sum of squares; AMAX is
    the largest absolute value; MUL_NO_ZEROS multiplies what is not 0. MIN, MAX and AMAX of anything and NaN are NaN. Of no
    elements, ADD and the norms are 0, the products 1, MIN infinite, MAX and AMAX minus infinity, AVG NaN.
    """

    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"
    AMAX = "amax"
    AVG = "avg"
    NORM1 = "norm1"
    NORM2 = "norm2"
    MUL_NO_ZEROS = "mul_no_zeros"

    @property
    def finds_an_element(self) -> bool:
        """Whether the result is one of the elements, which an index can name."""
        return self in (ReduceOperator.MIN, ReduceOperator.MAX, ReduceOperator.AMAX)
