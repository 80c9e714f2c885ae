"""Gathering what a filter meets into the columns of a matrix, and its adjoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.descriptors.settings import settle, wholes
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, same_dtype, writable

__all__ = ["Col2ImProblem", "Im2ColProblem"]


class _Patches(Operands):
    """What the two directions have in common. Immutable."""

    __slots__ = ()
    x: TensorDescriptor
    columns: TensorDescriptor
    convolution: ConvolutionDescriptor
    filter_shape: tuple[int, ...]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Extents of the places to which the filter moves."""
        one_filter = (1, *self.x.shape[1:2], *self.filter_shape)
        return replace(self.convolution, groups=1).output_shape(self.x.shape, one_filter)[2:]

    def _check_shapes(self) -> None:
        ndim = self.convolution.spatial_ndim
        if self.x.ndim != ndim + 2 or len(self.filter_shape) != ndim:
            raise BadParamError(
                f"x has shape {self.x.shape} and filter_shape is {self.filter_shape}; a convolution with {ndim} spatial "
                f"dimensions needs {ndim + 2} and {ndim} extents"
            )
        batch, channels = self.x.shape[:2]
        expected = (batch, channels * math.prod(self.filter_shape), math.prod(self.output_shape))
        if self.columns.shape != expected:
            raise BadParamError(
                f"columns has shape {self.columns.shape} but x {self.x.shape} and filter_shape {self.filter_shape} "
                f"give {expected}"
            )


@dataclass(frozen=True, slots=True)
class Im2ColProblem(_Patches):
    """columns [N, C * taps, places] from x [N, C, *input]: row (c, tap) of column p is what that tap meets there, 0 in the padding.

    Rows are in the filter's order as it is stored, c slowest, also for true convolution, and places in row-major order, so that
    w, seen as [K, C * taps], times columns is the convolution, seen as [N, K, places]. The descriptor's groups do not matter.
    Floating-point or int8. Source: arXiv 1410.0759, section 3.
    """

    x: TensorDescriptor
    columns: TensorDescriptor
    convolution: ConvolutionDescriptor
    filter_shape: tuple[int, ...]
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("columns",)

    def __post_init__(self) -> None:
        settle(self, filter_shape=wholes(self.filter_shape, "filter_shape"))
        if not self.x.dtype is self.columns.dtype is DType.INT8:
            same_dtype(x=self.x, columns=self.columns)
        self._check_shapes()
        writable(columns=self.columns)


@dataclass(frozen=True, slots=True)
class Col2ImProblem(_Patches):
    """x [N, C, *input] from columns [N, C * taps, places]: each element is the sum of all that Im2ColProblem copies it to."""

    columns: TensorDescriptor
    x: TensorDescriptor
    convolution: ConvolutionDescriptor
    filter_shape: tuple[int, ...]
    input_names: ClassVar[tuple[str, ...]] = ("columns",)
    output_names: ClassVar[tuple[str, ...]] = ("x",)

    def __post_init__(self) -> None:
        settle(self, filter_shape=wholes(self.filter_shape, "filter_shape"))
        same_dtype(columns=self.columns, x=self.x)
        self._check_shapes()
        writable(x=self.x)
