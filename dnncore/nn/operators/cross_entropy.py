"""The loss of a classifier and its gradient."""

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

__all__ = ["CrossEntropy", "MeanCrossEntropyBackward"]


@dataclass(frozen=True)
class CrossEntropy(Operator):
    """-log(softmax(x)[label]) of each image [N], from logits x [N, K] and classes int32 [N].

    A gradient begins at the mean of these: `MeanCrossEntropyBackward`.
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
