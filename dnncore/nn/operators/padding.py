"""A border around a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.structure import Slice
from dnncore.tensor import Tensor

__all__ = ["Pad"]


@dataclass(frozen=True)
class Pad(Operator):
    """x with a number around it.

    Args:
        padding: Places before and after, a pair per dimension.
        value: What is there.
    """

    kind: ClassVar[str] = "pad"

    padding: tuple[tuple[int, int], ...] = ()
    value: float = 0.0

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if len(self.padding) != len(x.shape) or any(min(pair) < 0 for pair in self.padding):
            raise BadParamError(f"padding {self.padding} must have a pair of places for each dimension of {x}")
        return (x.with_shape(*(extent + sum(pair) for extent, pair in zip(x.shape, self.padding, strict=True))),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (x,), (y,) = inputs, outputs
        ops.set_tensor(handle, self.value, y)
        offset = sum(before * stride for (before, _), stride in zip(self.padding, y.descriptor.strides, strict=True))
        ops.transform(handle, 1.0, x, 0.0, y.view(y.descriptor.with_shape(x.shape), offset))

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        dx = step.dy
        for axis, pair in enumerate(self.padding):
            if any(pair):
                extent = step.extent(step.x, axis)
                dx = step.add(Slice(axis, pair[0], pair[0] + extent), dx)
        return (step.plus(dx),)
