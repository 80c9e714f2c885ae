"""Operators of element-wise and reducing tensor operations."""

from __future__ import annotations

from enum import Enum

__all__ = ["BinaryOperator", "ReduceOperator"]


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
