"""Reducing a tensor over some of its dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import ReduceOperator, TensorDescriptor
from dnncore.descriptors.settings import member, settle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, broadcasts, same_dtype, same_shape, writable

__all__ = ["ReduceProblem"]


@dataclass(frozen=True, slots=True)
class ReduceProblem(Operands):
    """y = x reduced over the dimensions in which y has extent 1.

    Args:
        x: Any shape.
        y: Each extent that of x or 1.
        operator: What is computed.
        indices: int32, shape of y, for MIN, MAX and AMAX: which element it was, counted in row-major order over the dimensions that
            are reduced; of equals the first, of NaN the first, -1 where there is none. Overwritten.
    """

    x: TensorDescriptor
    y: TensorDescriptor
    operator: ReduceOperator
    indices: TensorDescriptor | None = None
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y", "indices")

    def __post_init__(self) -> None:
        settle(self, operator=member(ReduceOperator, self.operator))
        same_dtype(x=self.x, y=self.y)
        broadcasts("y", self.y, "x", self.x)
        writable(y=self.y)
        if self.indices is not None:
            if not self.operator.finds_an_element:
                raise BadParamError(f"indices are given, but {self.operator.value} finds no element")
            if self.indices.dtype is not DType.INT32:
                raise BadParamError(f"indices ({self.indices}) must be int32")
            same_shape(y=self.y, indices=self.indices)
            writable(indices=self.indices)
            if self.x.size // max(self.y.size, 1) >= 2**31:
                raise BadParamError(f"x ({self.x}) has too many elements a y ({self.y}) for int32 indices")

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written."""
        return (self.y,) if self.indices is None else (self.y, self.indices)
