"""The loss of a classifier and its gradient, and that of a mean, at which gradients begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.pointwise import Binary
from dnncore.nn.operators.structure import Reshape
from dnncore.tensor import Tensor

__all__ = ["CrossEntropy", "CrossEntropyBackward", "MeanBackward", "MeanCrossEntropyBackward"]


@dataclass(frozen=True)
class CrossEntropy(Operator):
    """-log(softmax(x)[label]) of each image [N], from logits x [N, K] and classes int32 [N].

    Where the loss is the mean of these, `MeanCrossEntropyBackward` is its gradient in one operation.
    """

    kind: ClassVar[str] = "cross_entropy"
    input_names: ClassVar[tuple[str, ...]] = ("x", "labels")

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x, labels = inputs
        if len(x.shape) != 2 or labels != Spec(DType.INT32, x.shape[:1]):
            raise BadParamError(f"logits {x} must be [N, K], and labels {labels} int32 [N]")
        return (Spec(x.dtype.compute, x.shape[:1]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, labels = inputs
        ops.cross_entropy_forward(handle, 1.0, x, labels, 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        own = step.add(CrossEntropyBackward(), *step.inputs)
        return (step.plus(step.add(Binary("mul"), own, step.add(Reshape((0, 1)), step.dy))),)


@dataclass(frozen=True)
class CrossEntropyBackward(Operator):
    """softmax(x) - onehot(labels) [N, K]: the gradient of the sum of `CrossEntropy` over the images."""

    kind: ClassVar[str] = "cross_entropy_backward"
    input_names: ClassVar[tuple[str, ...]] = ("x", "labels")

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0],)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, labels = inputs
        ops.cross_entropy_backward(handle, 1.0, x, labels, 0.0, outputs[0])


@dataclass(frozen=True)
class MeanCrossEntropyBackward(Operator):
    """dx [N, K] of the mean over the batch of `CrossEntropy`.

    Args:
        weight: Factor of that mean.
    """

    kind: ClassVar[str] = "mean_cross_entropy_backward"
    input_names: ClassVar[tuple[str, ...]] = ("x", "labels")

    weight: float = 1.0

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0],)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, labels = inputs
        ops.cross_entropy_backward(handle, self.weight / x.shape[0], x, labels, 0.0, outputs[0])


@dataclass(frozen=True)
class MeanBackward(Operator):
    """dx [N] of the mean over the images of x, which is the same for each.

    Args:
        weight: Factor of that mean.
    """

    kind: ClassVar[str] = "mean_backward"

    weight: float = 1.0

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0],)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.set_tensor(handle, self.weight / inputs[0].shape[0], outputs[0])
