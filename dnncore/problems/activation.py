"""Activations, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import ActivationDescriptor, TensorDescriptor
from dnncore.problems.problem import Operands, same_dtype, same_shape, writable

__all__ = ["ActivationBackwardProblem", "ActivationForwardProblem"]


@dataclass(frozen=True, slots=True)
class ActivationForwardProblem(Operands):
    """y = f(x), element by element; y may be x."""

    x: TensorDescriptor
    y: TensorDescriptor
    activation: ActivationDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("x", "y")})

    def __post_init__(self) -> None:
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        writable(y=self.y)


@dataclass(frozen=True, slots=True)
class ActivationBackwardProblem(Operands):
    """dx = f'(x) * dy, element by element, from (y, dy, x); dx may be dy."""

    y: TensorDescriptor
    dy: TensorDescriptor
    x: TensorDescriptor
    dx: TensorDescriptor
    activation: ActivationDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "x")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("dy", "dx")})

    def __post_init__(self) -> None:
        same_dtype(y=self.y, dy=self.dy, x=self.x, dx=self.dx)
        same_shape(y=self.y, dy=self.dy, x=self.x, dx=self.dx)
        writable(dx=self.dx)
