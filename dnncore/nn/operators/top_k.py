"""The largest elements, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import Operator, Spec
from dnncore.tensor import Tensor

__all__ = ["TopK"]


@dataclass(frozen=True)
class TopK(Operator):
    """The largest elements along a dimension, largest first, and their indices, int32; equal ones by index, NaN before all.

    Args:
        count: How many.
        axis: The dimension, counted from the first.
    """

    kind: ClassVar[str] = "top_k"

    count: int
    axis: int = 1

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if not 0 <= self.axis < len(x.shape) or not 0 <= self.count <= x.shape[self.axis]:
            raise BadParamError(f"{x} has no {self.count} elements along dimension {self.axis}")
        values = x.with_shape(*x.shape[: self.axis], self.count, *x.shape[self.axis + 1 :])
        return (values, Spec(DType.INT32, values.shape))

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (x,), (values, indices) = inputs, outputs
        ops.top_k(handle, self.axis, 1.0, x, 0.0, values, indices)
