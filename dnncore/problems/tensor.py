"""Adding one tensor to another with broadcasting, and its adjoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.problems.problem import Operands, broadcasts, same_dtype, writable

__all__ = ["AddProblem", "SumProblem"]


@dataclass(frozen=True, slots=True)
class AddProblem(Operands):
    """c = alpha * a + beta * c, where each extent of a is c's or 1; also the transform between layouts (beta 0)."""

    a: TensorDescriptor
    c: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("a",)
    output_names: ClassVar[tuple[str, ...]] = ("c",)

    def __post_init__(self) -> None:
        same_dtype(a=self.a, c=self.c)
        broadcasts("a", self.a, "c", self.c)
        writable(c=self.c)


@dataclass(frozen=True, slots=True)
class SumProblem(Operands):
    """y = sum of x over the dimensions in which y has extent 1; the adjoint of AddProblem, and so the bias gradient."""

    x: TensorDescriptor
    y: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        same_dtype(x=self.x, y=self.y)
        broadcasts("y", self.y, "x", self.x)
        writable(y=self.y)
