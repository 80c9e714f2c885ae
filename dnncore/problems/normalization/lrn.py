"""Local response normalisation, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import LRNDescriptor, TensorDescriptor
from dnncore.problems.problem import Operands, at_least_2d, same_dtype, same_shape, writable

__all__ = ["LRNBackwardProblem", "LRNForwardProblem"]


@dataclass(frozen=True, slots=True)
class LRNForwardProblem(Operands):
    """y = x / (k + alpha / size * sum of x^2)^beta of x [N, C, *spatial]; y must not be x, which is read around each place."""

    x: TensorDescriptor
    y: TensorDescriptor
    lrn: LRNDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        at_least_2d(x=self.x)
        writable(y=self.y)


@dataclass(frozen=True, slots=True)
class LRNBackwardProblem(Operands):
    """dx from (y, dy, x). y is what cuDNN asks for too; it is not read: x says the same with one rounding less."""

    y: TensorDescriptor
    dy: TensorDescriptor
    x: TensorDescriptor
    dx: TensorDescriptor
    lrn: LRNDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "x")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        same_dtype(y=self.y, dy=self.dy, x=self.x, dx=self.dx)
        same_shape(y=self.y, dy=self.dy, x=self.x, dx=self.dx)
        at_least_2d(x=self.x)
        writable(dx=self.dx)
