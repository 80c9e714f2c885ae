"""Tensors filled, added with broadcasting, combined element by element, and summed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import BinaryOperator, TensorDescriptor, UnaryOperator
from dnncore.descriptors.settings import HashedOnce, member, number, settle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, broadcasts, one_dtype, same_dtype, same_shape, writable

__all__ = ["AddProblem", "BinaryProblem", "FillProblem", "SumProblem", "UnaryProblem", "WhereProblem"]


@dataclass(frozen=True, slots=True)
class FillProblem(Operands):
    """y = alpha everywhere (plus beta * y), in every dtype."""

    y: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ()
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        writable(y=self.y)


@dataclass(frozen=True, slots=True)
class AddProblem(HashedOnce, Operands):
    """c = alpha * a + beta * c, where each extent of a is c's or 1; also the transform between layouts, and between dtypes.

    Integers are rounded to even and saturated.
    """

    a: TensorDescriptor
    c: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("a",)
    output_names: ClassVar[tuple[str, ...]] = ("c",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("a", "c")})

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        broadcasts("a", self.a, "c", self.c)
        writable(c=self.c)

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """What is read; told without names, as every copy asks for it."""
        return (self.a,)

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """What is written."""
        return (self.c,)


@dataclass(frozen=True, slots=True)
class UnaryProblem(Operands):
    """y = operator(x), element by element; y may be x."""

    x: TensorDescriptor
    y: TensorDescriptor
    operator: UnaryOperator
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("x", "y")})

    def __post_init__(self) -> None:
        settle(self, operator=member(UnaryOperator, self.operator))
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        writable(y=self.y)


@dataclass(frozen=True, slots=True)
class BinaryProblem(Operands):
    """c = operator(alpha1 * a, alpha2 * b), element by element; each extent of a and of b is c's or 1.

    a and b have one element type, integers among them; that of c is `BinaryOperator.result`. Integers are computed in float64,
    rounded to even and saturated.
    """

    a: TensorDescriptor
    b: TensorDescriptor
    c: TensorDescriptor
    operator: BinaryOperator
    alpha1: float = 1.0
    alpha2: float = 1.0
    input_names: ClassVar[tuple[str, ...]] = ("a", "b")
    output_names: ClassVar[tuple[str, ...]] = ("c",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("a", "c"), ("b", "c")})

    def __post_init__(self) -> None:
        settle(
            self,
            operator=member(BinaryOperator, self.operator),
            alpha1=number(self.alpha1, "alpha1"),
            alpha2=number(self.alpha2, "alpha2"),
        )
        one_dtype(a=self.a, b=self.b)
        result = self.operator.result(self.a.dtype)
        if self.c.dtype is not result:
            raise BadParamError(
                f"c is {self.c.dtype.value}; {self.operator.value} of {self.a.dtype.value} gives {result.value}"
            )
        broadcasts("a", self.a, "c", self.c)
        broadcasts("b", self.b, "c", self.c)
        writable(c=self.c)
        if not (math.isfinite(self.alpha1) and math.isfinite(self.alpha2)):
            raise BadParamError(f"alpha1 {self.alpha1} and alpha2 {self.alpha2} must be finite")


@dataclass(frozen=True, slots=True)
class WhereProblem(Operands):
    """c = a where the condition holds, which is BOOL, else b; each extent of the three is c's or 1.

    a, b and c have one element type, whichever it is.
    """

    condition: TensorDescriptor
    a: TensorDescriptor
    b: TensorDescriptor
    c: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("condition", "a", "b")
    output_names: ClassVar[tuple[str, ...]] = ("c",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("a", "c"), ("b", "c")})

    def __post_init__(self) -> None:
        if self.condition.dtype is not DType.BOOL:
            raise BadParamError(f"the condition is {self.condition.dtype.value}; bool is needed")
        one_dtype(a=self.a, b=self.b, c=self.c)
        for name in self.input_names:
            broadcasts(name, getattr(self, name), "c", self.c)
        writable(c=self.c)


@dataclass(frozen=True, slots=True)
class SumProblem(Operands):
    """y = sum of x over the dimensions in which y has extent 1; the adjoint of AddProblem, and so the bias gradient.

    y has x's dtype or, unrounded, its compute type.
    """

    x: TensorDescriptor
    y: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        if not self.x.dtype.is_floating or self.y.dtype is not self.x.dtype.compute:
            same_dtype(x=self.x, y=self.y)
        broadcasts("y", self.y, "x", self.x)
        writable(y=self.y)
