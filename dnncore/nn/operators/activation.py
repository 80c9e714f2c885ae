"""Element-wise non-linearities and their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import ActivationDescriptor
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.gradients import blend_with
from dnncore.tensor import Tensor

__all__ = ["Activation", "ActivationBackward"]


@dataclass(frozen=True)
class _Activation(Operator):
    """A mode of `ActivationMode`, by name.

    Args:
        mode: "relu", "sigmoid", ...
        coefficient: A ceiling, a slope or a depth, where the mode has one.
    """

    mode: str
    coefficient: float = 0.0

    @property
    def descriptor(self) -> ActivationDescriptor:
        """The activation, for operations."""
        return ActivationDescriptor.make(self.mode, self.coefficient)

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        _ = self.descriptor  # which checks mode and coefficient
        return (inputs[0],)


@dataclass(frozen=True)
class Activation(_Activation):
    """A non-linearity of every element."""

    kind: ClassVar[str] = "activation"
    in_place: ClassVar[frozenset[int]] = frozenset({0})

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.activation_forward(handle, self.descriptor, 1.0, inputs[0], 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        (y,) = step.outputs
        x = y if self.descriptor.result_tells_slope(step.dtype(y)) else step.x
        return (step.add(ActivationBackward(self.mode, self.coefficient), y, step.dy, x, step.partial()),)


@dataclass(frozen=True)
class ActivationBackward(_Activation):
    """dx = dy times the slope; plus what is there already. Where y tells the slope, y may be given for x."""

    kind: ClassVar[str] = "activation_backward"
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "x", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({1, 3})

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        y, dy, x = inputs[:3]
        beta = blend_with(handle, inputs[3:], outputs[0])
        ops.activation_backward(handle, self.descriptor, 1.0, y, dy, x, beta, outputs[0])
