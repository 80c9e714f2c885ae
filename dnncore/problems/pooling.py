"""Pooling, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import PoolingDescriptor, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, same_dtype, same_shape, writable

__all__ = ["PoolingBackwardProblem", "PoolingForwardProblem"]


@dataclass(frozen=True, slots=True)
class PoolingForwardProblem(Operands):
    """y [N, C, *output] from x [N, C, *input]. A maximum propagates NaN."""

    x: TensorDescriptor
    y: TensorDescriptor
    pooling: PoolingDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        same_dtype(x=self.x, y=self.y)
        expected = self.pooling.output_shape(self.x.shape)
        if self.y.shape != expected:
            raise BadParamError(f"y has shape {self.y.shape} but x {self.x.shape} gives {expected}")
        writable(y=self.y)


@dataclass(frozen=True, slots=True)
class PoolingBackwardProblem(Operands):
    """dx from (y, dy, x); of equal maxima the first in row-major order takes the whole gradient."""

    y: TensorDescriptor
    dy: TensorDescriptor
    x: TensorDescriptor
    dx: TensorDescriptor
    pooling: PoolingDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "x")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        same_dtype(y=self.y, dy=self.dy, x=self.x, dx=self.dx)
        same_shape(x=self.x, dx=self.dx)
        same_shape(y=self.y, dy=self.dy)
        expected = self.pooling.output_shape(self.x.shape)
        if self.y.shape != expected:
            raise BadParamError(f"y has shape {self.y.shape} but x {self.x.shape} gives {expected}")
        writable(dx=self.dx)
