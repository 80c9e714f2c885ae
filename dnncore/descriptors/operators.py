"""Operators of element-wise and reducing tensor operations."""

from __future__ import annotations

from enum import Enum

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
    """What is done with two elements. The minimum or maximum of anything and NaN is NaN."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MIN = "min"
    MAX = "max"


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
