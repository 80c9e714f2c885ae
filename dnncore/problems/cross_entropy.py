"""Cross-entropy of logits, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import CrossEntropyDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import Operands, same_dtype, same_shape, writable

__all__ = ["CrossEntropyBackwardProblem", "CrossEntropyForwardProblem"]

_PLAIN = CrossEntropyDescriptor()


def _cross_entropy(x: TensorDescriptor, labels: TensorDescriptor, settings: CrossEntropyDescriptor) -> None:
    if x.ndim != 2 or not x.dtype.is_floating:
        raise BadParamError(f"x ({x}) must be floating-point logits of shape [N, K]")
    if labels.dtype is not DType.INT32:
        if labels.dtype is not x.dtype or labels.shape != x.shape:
            raise BadParamError(
                f"labels ({labels}) must be int32 of shape [{x.shape[0]}], one per row of x {x.shape}, or probabilities of "
                f"the dtype and shape of x ({x})"
            )
        if settings.ignore_index is not None:
            raise BadParamError(f"ignore_index is {settings.ignore_index}, but labels ({labels}) are probabilities")
    elif labels.shape != x.shape[:1]:
        raise BadParamError(f"labels ({labels}) must be int32 of shape [{x.shape[0]}], one per row of x {x.shape}")


@dataclass(frozen=True, slots=True)
class CrossEntropyForwardProblem(Operands):
    """loss [N] = logsumexp(x[n]) - x[n, labels[n]] of logits x [N, K]; a label outside 0..K-1 gives loss 0.

    `labels` are classes, int32 [N], or probabilities [N, K] of the dtype of x, whose loss is the sum over k of
    -labels[n, k] * log softmax(x[n])[k]. The loss has the dtype of x or, where x has 16 bits, float32 if that is asked for.
    """

    x: TensorDescriptor
    labels: TensorDescriptor
    loss: TensorDescriptor
    cross_entropy: CrossEntropyDescriptor = _PLAIN
    input_names: ClassVar[tuple[str, ...]] = ("x", "labels")
    output_names: ClassVar[tuple[str, ...]] = ("loss",)

    def __post_init__(self) -> None:
        _cross_entropy(self.x, self.labels, self.cross_entropy)
        if self.loss.dtype is not self.x.dtype.compute:
            same_dtype(x=self.x, loss=self.loss)
        if self.loss.shape != self.x.shape[:1]:
            raise BadParamError(f"loss has shape {self.loss.shape} but x {self.x.shape} gives {self.x.shape[:1]}")
        writable(loss=self.loss)


@dataclass(frozen=True, slots=True)
class CrossEntropyBackwardProblem(Operands):
    """dx [N, K] = softmax(x) - onehot(labels), a row of zeros where the label is outside 0..K-1; labels as forward.

    With probabilities dx[n] = sum_k(labels[n, k]) * softmax(x[n]) - labels[n].
    """

    x: TensorDescriptor
    labels: TensorDescriptor
    dx: TensorDescriptor
    cross_entropy: CrossEntropyDescriptor = _PLAIN
    input_names: ClassVar[tuple[str, ...]] = ("x", "labels")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        _cross_entropy(self.x, self.labels, self.cross_entropy)
        same_dtype(x=self.x, dx=self.dx)
        same_shape(x=self.x, dx=self.dx)
        writable(dx=self.dx)
