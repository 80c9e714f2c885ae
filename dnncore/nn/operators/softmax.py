"""Softmax along any dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.gradients import blend_with
from dnncore.tensor import Tensor

__all__ = ["Softmax", "SoftmaxBackward"]


@dataclass(frozen=True)
class _Softmax(Operator):
    """Which dimension sums to 1.

    Args:
        axis: The dimension; counted from the last where negative.
        log: Whether the logarithm is given.
    """

    axis: int = 1
    log: bool = False

    @property
    def algorithm(self) -> SoftmaxAlgorithm:
        """For operations: the one that neither overflows nor divides by 0."""
        return SoftmaxAlgorithm.LOG if self.log else SoftmaxAlgorithm.ACCURATE

    @property
    def strided(self) -> bool:
        """Rows of a tensor are only in a row where it is row-major."""
        return self.axis == 1

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if not -len(x.shape) <= self.axis < len(x.shape):
            raise BadParamError(f"{x} has no dimension {self.axis}")
        return (x,)

    def along_channels(self, tensor: Tensor) -> Tensor:
        """The tensor with the dimension second: itself, or, where it is row-major, its rows."""
        axis = self.axis % tensor.ndim
        if axis == 1:
            return tensor
        before, after = math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis + 1 :])
        return tensor.reshape(before, tensor.shape[axis], after)


@dataclass(frozen=True)
class Softmax(_Softmax):
    """exp(x) over its sum along a dimension, or the logarithm of that."""

    kind: ClassVar[str] = "softmax"
    in_place: ClassVar[frozenset[int]] = frozenset({0})

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, y = self.along_channels(inputs[0]), self.along_channels(outputs[0])
        ops.softmax_forward(handle, self.algorithm, SoftmaxMode.CHANNEL, 1.0, x, 0.0, y)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return (step.add(SoftmaxBackward(self.axis, self.log), step.outputs[0], step.dy, step.partial()),)


@dataclass(frozen=True)
class SoftmaxBackward(_Softmax):
    """dx of a softmax, from y and dy; plus what is there already."""

    kind: ClassVar[str] = "softmax_backward"
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({2})

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        beta = blend_with(handle, inputs[2:], outputs[0])
        y, dy, dx = (self.along_channels(tensor) for tensor in (*inputs[:2], outputs[0]))
        ops.softmax_backward(handle, self.algorithm, SoftmaxMode.CHANNEL, 1.0, y, dy, beta, dx)
