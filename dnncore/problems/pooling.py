"""Pooling, forward and backward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import PoolingDescriptor, PoolingMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, same_dtype, same_shape, writable

__all__ = ["PoolingBackwardIndicesProblem", "PoolingBackwardProblem", "PoolingForwardProblem"]


def _pooled(pooling: PoolingDescriptor, **tensors: TensorDescriptor) -> None:
    """Refuse the second tensor when it has not the shape that pooling the first one gives."""
    (large, x), (small, y) = tensors.items()
    expected = pooling.output_shape(x.shape)
    if y.shape != expected:
        raise BadParamError(f"{small} has shape {y.shape} but {large} {x.shape} gives {expected}")


def _indices(pooling: PoolingDescriptor, indices: TensorDescriptor, **tensors: TensorDescriptor) -> None:
    """Refuse indices that are none of a maximum, or that have not int32 and the shape of the second tensor."""
    (large, x), (small, y) = tensors.items()
    if pooling.mode is not PoolingMode.MAX:
        raise BadParamError(f"indices are those of maxima, but pooling has mode {pooling.mode.value}")
    if indices.dtype is not DType.INT32 or indices.shape != y.shape:
        raise BadParamError(f"indices ({indices}) must be int32 of the shape of {small}, {y.shape}")
    places = math.prod(x.shape[2:])
    if places > 1 << 31 or (places == 0 and y.size):
        raise BadParamError(f"{large} {x.shape} has {places} places in a plane; an int32 can name 1 to {1 << 31}")


@dataclass(frozen=True, slots=True)
class PoolingForwardProblem(Operands):
    """y [N, C, *output] from x [N, C, *input], and where each maximum was.

    x and y are floating-point or int8, whose averages are rounded to even. A maximum propagates NaN, or lets it count as minus
    infinity. `indices` [N, C, *output], of maxima only, are plainly overwritten: the place of the maximum among those of
    x[n, c], counted in row-major order. Of equal maxima it is the first, and the first NaN where NaN is the maximum.
    """

    x: TensorDescriptor
    y: TensorDescriptor
    pooling: PoolingDescriptor
    indices: TensorDescriptor | None = None
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y", "indices")

    def __post_init__(self) -> None:
        if not self.x.dtype is self.y.dtype is DType.INT8:
            same_dtype(x=self.x, y=self.y)
        _pooled(self.pooling, x=self.x, y=self.y)
        writable(y=self.y)
        if self.indices is not None:
            _indices(self.pooling, self.indices, x=self.x, y=self.y)
            writable(indices=self.indices)

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written: y, and indices where they are asked for."""
        return (self.y,) if self.indices is None else (self.y, self.indices)


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
        _pooled(self.pooling, x=self.x, y=self.y)
        writable(dx=self.dx)


@dataclass(frozen=True, slots=True)
class PoolingBackwardIndicesProblem(Operands):
    """dx from dy and the indices of the maxima that the forward operation wrote, without x and y.

    Each dy is added to the place that its index names; several windows may name one, and an index that is no place of its own
    window adds nothing. With windows that do not overlap it is what others call max unpooling.
    """

    dy: TensorDescriptor
    indices: TensorDescriptor
    dx: TensorDescriptor
    pooling: PoolingDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("dy", "indices")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        same_dtype(dy=self.dy, dx=self.dx)
        _pooled(self.pooling, dx=self.dx, dy=self.dy)
        _indices(self.pooling, self.indices, dx=self.dx, dy=self.dy)
        writable(dx=self.dx)
