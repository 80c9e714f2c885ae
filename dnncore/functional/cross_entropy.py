"""Cross-entropy of logits."""

from __future__ import annotations

import math

import numpy as np

from dnncore.descriptors import BinaryOperator, CrossEntropyDescriptor, ReduceOperator, TensorDescriptor
from dnncore.dlpack import CPU
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.problems import AddProblem, BinaryProblem, CrossEntropyForwardProblem, ReduceProblem
from dnncore.tensor import Tensor

__all__ = ["cross_entropy"]

_REDUCTIONS = ("none", "mean", "sum")


@remembered
def _cross_entropy(
    ignore_index: int, reduction: str, label_smoothing: float, given: TensorDescriptor, target: TensorDescriptor
) -> Operation:
    """(logits, target) -> loss, [N, *places] or [1]."""
    x = with_leading(given, 2)
    has_probabilities = target.dtype.is_floating
    expected = given.shape if has_probabilities else (x.shape[0], *x.shape[2:])
    if target.shape != expected:
        raise BadParamError(f"target has shape {target.shape} but logits {given.shape} need {expected}")
    made = TensorDescriptor.packed((x.shape[0], *x.shape[2:]) if reduction == "none" else (1,), x.dtype)
    draft = Draft(2, made)
    (result,) = draft.results
    place, logits = draft.matrix(0, _channels_last(x))
    if has_probabilities:
        target_place, labels = draft.matrix(1, _channels_last(with_leading(target, 2)))
    else:
        target_place, labels = _vector(draft, 1, target)
    count = logits.shape[0]
    plain = CrossEntropyDescriptor(0.0, None if has_probabilities else ignore_index)
    settings = CrossEntropyDescriptor(label_smoothing, plain.ignore_index)
    if reduction == "none":
        loss = TensorDescriptor.packed((count,), x.dtype)
        draft.step(CrossEntropyForwardProblem(logits, labels, loss, settings), place, target_place, result)
        return draft.operation()
    wide = x.dtype.compute  # in which a sum does not overflow
    losses, one = TensorDescriptor.packed((count,), wide), TensorDescriptor.packed((1,), wide)
    each = draft.scratch(losses)
    draft.step(CrossEntropyForwardProblem(logits, labels, losses, settings), place, target_place, each)
    total = result if wide is x.dtype else draft.scratch(one)
    share = 1.0
    if reduction == "mean" and has_probabilities:
        share = 1 / count if count else math.nan
    draft.step(ReduceProblem(losses, one, ReduceOperator.ADD), each, total, alpha=share)
    if reduction == "mean" and not has_probabilities:
        counted = _counted(draft, target_place, labels, plain, logits)
        draft.step(BinaryProblem(one, one, one, BinaryOperator.DIV), total, counted, total)
    if total != result:
        draft.step(AddProblem(one, made), total, result)
    return draft.operation()


def _counted(
    draft: Draft, place: int, labels: TensorDescriptor, settings: CrossEntropyDescriptor, logits: TensorDescriptor
) -> int:
    """The place of the number of labels that count, found on the device: equal logits give each of them a loss of log K."""
    wide, (count, classes) = logits.dtype.compute, logits.shape
    classes = max(classes, 2)  # log 1 would say nothing
    one = TensorDescriptor.packed((1,), wide)
    zero = draft.filled(0.0, one)
    losses = TensorDescriptor.packed((count,), wide)
    each, total = draft.scratch(losses), draft.scratch(one)
    equal = TensorDescriptor(wide, (count, classes), (0, 0))
    draft.step(CrossEntropyForwardProblem(equal, labels, losses, settings), zero, place, each)
    draft.step(ReduceProblem(losses, one, ReduceOperator.ADD), each, total, alpha=1 / math.log(classes))
    return total


def _channels_last(x: TensorDescriptor) -> TensorDescriptor:
    return x.transposed(0, *range(2, x.ndim), 1)


def _vector(draft: Draft, place: int, x: TensorDescriptor) -> tuple[int, TensorDescriptor]:
    """[...] as [M]; copied where no one stride leads from element to element."""
    place, column = draft.matrix(place, TensorDescriptor(x.dtype, (*x.shape, 1), (*x.strides, 1)))
    return place, TensorDescriptor(x.dtype, column.shape[:1], column.strides[:1])


def cross_entropy(
    input: Operand,
    target: Operand,
    weight: None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss of logits x [N, K, *places], or [K]: logsumexp(x[n]) - x[n, target[n]].

    Args:
        input: Logits.
        target: Classes [N, *places], of [K] one in [1]: int32, or on the host integers of any width; the loss of what is no class
            is 0, and it does not count in the mean. Or probabilities, of shape and dtype of the logits.
        weight: None; weights of classes are refused.
        ignore_index: A class whose loss is 0 and does not count in the mean; ignored where classes are probabilities.
        reduction: "mean" over the targets that count, "sum", both [1], or "none", [N, *places].
        label_smoothing: Part of every target that is shared out among all K classes.
    """
    if weight is not None:
        raise BadParamError("weight is given, but weights of classes are not supported")
    if reduction not in _REDUCTIONS:
        raise BadParamError(f"reduction {reduction!r} is none of {', '.join(_REDUCTIONS)}")
    return compute(_cross_entropy, (ignore_index, reduction, label_smoothing), input, _widened(target))[0]


def _widened(target: Operand) -> Operand:
    """Labels on the host that are bytes, which tensors can be, as int32; anything else as it is."""
    is_bytes = str(getattr(target, "dtype", "")).endswith("uint8")  # of NumPy or PyTorch
    if not is_bytes or isinstance(target, Tensor) or target.__dlpack_device__() != CPU:
        return target
    return np.asarray(target).astype(np.int32)
