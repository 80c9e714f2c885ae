"""The largest elements along a dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, same_dtype, same_shape, writable

__all__ = ["TopKProblem"]


@dataclass(frozen=True, slots=True)
class TopKProblem(Operands):
    """The largest elements of x along a dimension, largest first.

    Of equal elements the one with the lower index comes first; NaN comes before all numbers, as a maximum finds it.

    Args:
        x: Any shape.
        values: That of x with the number wanted, at most that of x, in the dimension.
        indices: int32, shape of `values`: where each element is along the dimension. Overwritten.
        axis: The dimension, counted from the first.
    """

    x: TensorDescriptor
    values: TensorDescriptor
    indices: TensorDescriptor
    axis: int
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("values", "indices")

    def __post_init__(self) -> None:
        same_dtype(x=self.x, values=self.values)
        same_shape(values=self.values, indices=self.indices)
        writable(values=self.values, indices=self.indices)
        if self.indices.dtype is not DType.INT32:
            raise BadParamError(f"indices ({self.indices}) must be int32")
        if not 0 <= self.axis < self.x.ndim:
            raise BadParamError(f"x ({self.x}) has no dimension {self.axis}")
        there, wanted = self.x.shape[self.axis], self.values.shape[self.axis : self.axis + 1]
        if self.values.shape != (*self.x.shape[: self.axis], *wanted, *self.x.shape[self.axis + 1 :]):
            raise BadParamError(
                f"values ({self.values}) must have the shape of x ({self.x}) but for dimension {self.axis}"
            )
        if wanted[0] > there or there >= 2**31:
            raise BadParamError(
                f"{wanted[0]} elements of {there} are wanted; there must be as many, and fewer than 2^31"
            )
