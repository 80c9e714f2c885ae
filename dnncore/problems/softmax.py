"""Softmax, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore.descriptors.settings import member, settle
from dnncore.problems.problem import Operands, at_least_2d, same_dtype, same_shape, writable

__all__ = ["SoftmaxBackwardProblem", "SoftmaxForwardProblem"]


@dataclass(frozen=True, slots=True)
class SoftmaxForwardProblem(Operands):
    """y = softmax(x), or its logarithm, of [N, C, *spatial]; y may be x."""

    x: TensorDescriptor
    y: TensorDescriptor
    algorithm: SoftmaxAlgorithm
    mode: SoftmaxMode
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("x", "y")})

    def __post_init__(self) -> None:
        settle(self, algorithm=member(SoftmaxAlgorithm, self.algorithm), mode=member(SoftmaxMode, self.mode))
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        at_least_2d(x=self.x)
        writable(y=self.y)


@dataclass(frozen=True, slots=True)
class SoftmaxBackwardProblem(Operands):
    """dx from (y, dy), y being what the forward operation wrote; dx may be dy."""

    y: TensorDescriptor
    dy: TensorDescriptor
    dx: TensorDescriptor
    algorithm: SoftmaxAlgorithm
    mode: SoftmaxMode
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("dy", "dx")})

    def __post_init__(self) -> None:
        settle(self, algorithm=member(SoftmaxAlgorithm, self.algorithm), mode=member(SoftmaxMode, self.mode))
        same_dtype(y=self.y, dy=self.dy, dx=self.dx)
        same_shape(y=self.y, dy=self.dy, dx=self.dx)
        at_least_2d(y=self.y)
        writable(dx=self.dx)
