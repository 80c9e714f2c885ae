"""The largest element, and where it is."""

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

__all__ = ["ArgMax"]


@dataclass(frozen=True)
class ArgMax(Operator):
    """The largest element along a dimension, which is left with extent 1, and its index, int32: the first of equals.

    Args:
        axis: The dimension, counted from the first.
    """

    kind: ClassVar[str] = "arg_max"

    axis: int = 1

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if not 0 <= self.axis < len(x.shape):
            raise BadParamError(f"{x} has no dimension {self.axis}")
        largest = x.with_shape(*x.shape[: self.axis], 1, *x.shape[self.axis + 1 :])
        return (largest, Spec(DType.INT32, largest.shape))

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (x,), (largest, index) = inputs, outputs
        ops.reduce(handle, "max", 1.0, x, 0.0, largest, index)
