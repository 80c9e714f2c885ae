"""Many elements made one: sums, means, extrema, products and norms over some dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import ReduceOperator, TensorDescriptor
from dnncore.descriptors.settings import member
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.broadcast import Expand
from dnncore.nn.operators.pointwise import Scale
from dnncore.nn.operators.structure import Reshape
from dnncore.tensor import Tensor

__all__ = ["Reduce"]


@dataclass(frozen=True)
class Reduce(Operator):
    """x reduced over some of its dimensions.

    Args:
        operator: A name of `ReduceOperator`.
        axes: The dimensions, counted from the first.
        keep: Whether they are left with extent 1; else they are gone.
    """

    kind: ClassVar[str] = "reduce"

    operator: str = "add"
    axes: tuple[int, ...] = ()
    keep: bool = True

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        member(ReduceOperator, self.operator)
        if len(set(self.axes)) != len(self.axes) or any(not 0 <= axis < len(x.shape) for axis in self.axes):
            raise BadParamError(f"{x} has no dimensions {list(self.axes)}, each once")
        kept = self._kept(x.shape)
        left = (extent for axis, extent in enumerate(x.shape) if axis not in self.axes)
        return (x.with_shape(*(kept if self.keep else left)),)

    def _kept(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(1 if axis in self.axes else extent for axis, extent in enumerate(shape))

    @property
    def strided(self) -> bool:
        """Where dimensions go, those of y are seen as if they were still there."""
        return self.keep

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (x,), (y,) = inputs, outputs
        y = y if self.keep else y.view(TensorDescriptor.packed(self._kept(x.shape), y.dtype))
        ops.reduce(handle, self.operator, 1.0, x, 0.0, y)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """Of sums and means over anything but the batch."""
        shape, dy = step.spec(step.x).shape, step.dy
        if self.operator not in ("add", "avg") or 0 in self.axes:
            raise BadParamError(f"{self.kind} {self.operator!r} over dimensions {list(self.axes)} has no gradient here")
        if not self.keep:
            dy = step.add(Reshape((-1, *self._kept(shape)[1:])), dy)
        if self.operator == "avg":
            dy = step.add(Scale(1 / math.prod(shape[axis] for axis in self.axes)), dy)
        return (step.plus(step.add(Expand(shape[1:]), dy)),)
