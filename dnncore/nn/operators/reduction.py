"""Many elements made one: sums, means, extrema, products and norms over some dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from dnncore import ops
from dnncore.descriptors import ReduceOperator, TensorDescriptor
from dnncore.descriptors.settings import member
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Extent, Operator, Spec
from dnncore.nn.operators.broadcast import Expand
from dnncore.nn.operators.pointwise import Binary, Scale, Unary, Where
from dnncore.nn.operators.structure import Cast, Ones, Zeros, reshaped
from dnncore.tensor import Tensor

__all__ = ["Reduce"]

_E = TypeVar("_E", bound=Extent)


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

    def _kept(self, shape: Sequence[_E]) -> tuple[_E | int, ...]:
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
        """Of sums and means; of extrema, which equal ones share; and of norms, 0 for nothing but zeros as in PyTorch."""
        if self.operator not in _OF_PLACES and self.operator not in ("add", "avg"):
            raise BadParamError(f"{self.kind} {self.operator!r} has no gradient")
        dy, y = step.dy, step.outputs[0]
        if not self.keep:
            kept = self._kept(step.shape(step.x))
            dy, y = reshaped(step, dy, kept), reshaped(step, y, kept) if self.operator in _OF_PLACES else y
        if self.operator in _OF_PLACES:
            return (step.plus(_OF_PLACES[self.operator](step, self.axes, dy, y)),)
        if self.operator == "avg":
            dy = self._shared(step, dy)
        return (step.plus(self._expanded(step, dy)),)

    def _shared(self, step: BackwardStep, dy: str) -> str:
        """dy over the number of elements that a mean is of."""
        extents = [step.shape(step.x)[axis] for axis in self.axes]
        numbers = [extent for extent in extents if isinstance(extent, int)]
        if len(numbers) == len(extents):
            return step.add(Scale(1 / math.prod(numbers)), dy)
        count = step.add(Reduce("add", self.axes), step.add(Ones(), step.x))
        return step.add(Binary("div"), dy, count)

    def _expanded(self, step: BackwardStep, dy: str) -> str:
        """dy at each of the elements."""
        extents = [extent if axis in self.axes else 1 for axis, extent in enumerate(step.shape(step.x))]
        numbers = tuple(extent for extent in extents if isinstance(extent, int))
        if len(numbers) < len(extents):  # x says how many images there are
            return step.add(Binary("add"), step.add(Zeros(), step.x), dy)
        return step.add(Expand(numbers), dy)


def _of_extreme(step: BackwardStep, axes: tuple[int, ...], dy: str, y: str) -> str:
    """dy in equal parts at the elements that are the extreme."""
    is_extreme = step.add(Cast(step.dtype(step.x).value), step.add(Binary("equal"), step.x, y))
    share = step.add(Binary("div"), dy, step.add(Reduce("add", axes), is_extreme))
    return step.add(Binary("mul"), is_extreme, share)


def _of_norm1(step: BackwardStep, _axes: tuple[int, ...], dy: str, _y: str) -> str:
    return step.add(Binary("mul"), step.add(Unary("sign"), step.x), dy)


def _of_norm2(step: BackwardStep, _axes: tuple[int, ...], dy: str, y: str) -> str:
    """x dy / y, and 0 where y is."""
    zeros = step.add(Zeros(), y)
    is_zero = step.add(Binary("equal"), y, zeros)
    share = step.add(Where(), is_zero, zeros, step.add(Binary("div"), dy, y))
    return step.add(Binary("mul"), step.x, share)


_OF_PLACES: dict[str, Callable[[BackwardStep, tuple[int, ...], str, str], str]] = {
    "max": _of_extreme,
    "min": _of_extreme,
    "norm1": _of_norm1,
    "norm2": _of_norm2,
}
"""By operator: the nodes of a gradient that asks of each element what it is, from dy and y with the reduced dimensions in them."""
