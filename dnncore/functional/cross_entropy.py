"""Cross-entropy of logits."""

from __future__ import annotations

import math

import numpy as np

from dnncore.descriptors import (
    BinaryOperator,
    CrossEntropyDescriptor,
    ReduceOperator,
    SoftmaxAlgorithm,
    SoftmaxMode,
    TensorDescriptor,
)
from dnncore.dlpack import CPU
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.problems import (
    AddProblem,
    BinaryProblem,
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    ReduceProblem,
    SoftmaxForwardProblem,
    WhereProblem,
)
from dnncore.tensor import Tensor

__all__ = ["cross_entropy"]

_REDUCTIONS = ("none", "mean", "sum")


@remembered
def _cross_entropy(
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    given: TensorDescriptor,
    target: TensorDescriptor,
    weight: TensorDescriptor | None,
) -> Operation:
    """(logits, target, weight) -> loss, [N, *places] or []."""
    if not given.ndim:
        raise BadParamError("input has shape (); [N, K, *places] or [K] is needed")
    x = with_leading(given, 2)
    has_probabilities = target.dtype.is_floating
    places = (x.shape[0], *x.shape[2:]) if x is given else ()
    expected = given.shape if has_probabilities else places
    if target.shape != expected and (x is given or has_probabilities or target.shape != (1,)):
        raise BadParamError(f"target has shape {target.shape} but logits {given.shape} need {expected}")
    made = TensorDescriptor.packed(places if reduction == "none" else (), x.dtype)
    draft = Draft(3, made)
    (result,) = draft.results
    logits_at, logits = draft.matrix(0, _channels_last(x))
    if has_probabilities:
        labels_at, labels = draft.matrix(1, _channels_last(with_leading(target, 2)))
    else:
        labels_at, labels = _vector(draft, 1, target)
    settings = CrossEntropyDescriptor(label_smoothing, None if has_probabilities else ignore_index)
    count = logits.shape[0]
    if weight is None:
        losses = TensorDescriptor.packed((count,), x.dtype if reduction == "none" else x.dtype.compute)
        each = result if reduction == "none" else draft.scratch(losses)
        draft.step(CrossEntropyForwardProblem(logits, labels, losses, settings), logits_at, labels_at, each)
        if reduction == "none":
            return draft.operation()
        divisor = None
    else:
        weighted = _of_probabilities if has_probabilities else _of_classes
        each, divisor = weighted(draft, (logits_at, logits), (labels_at, labels), weight, settings)
        losses = TensorDescriptor.packed((count,), x.dtype.compute)
        if reduction == "none":
            draft.step(AddProblem(losses, TensorDescriptor.packed((count,), x.dtype)), each, result)
            return draft.operation()
    wide = x.dtype.compute  # in which a sum does not overflow
    one = TensorDescriptor.packed((1,), wide)
    total = result if wide is x.dtype else draft.scratch(one)
    share = 1.0
    if reduction == "mean" and has_probabilities:
        share = 1 / count if count else math.nan
    draft.step(ReduceProblem(losses, one, ReduceOperator.ADD), each, total, alpha=share)
    if reduction == "mean" and not has_probabilities:
        plain = CrossEntropyDescriptor(0.0, ignore_index)
        divisor = _counted(draft, labels_at, labels, plain, logits) if divisor is None else divisor
        draft.step(BinaryProblem(one, one, one, BinaryOperator.DIV), total, divisor, total)
    if total != result:
        draft.step(AddProblem(one, with_leading(made, 1)), total, result)
    return draft.operation()


Placed = tuple[int, TensorDescriptor]
"""A tensor of an operation: its place, and how it is seen."""


def _weighted_terms(draft: Draft, logits: Placed, weight: TensorDescriptor) -> tuple[Placed, Placed]:
    """-weight[k] log softmax(x[n])[k], [M, K], and the weights, [1, K]; both in the compute type."""
    place, x = draft.in_dtype(*logits, logits[1].dtype.compute)
    if weight.shape != x.shape[1:] or not weight.dtype.is_floating:
        raise BadParamError(
            f"weight is {weight.dtype.value}{list(weight.shape)} but logits {logits[1].shape} have {x.shape[1]} classes: a "
            f"floating-point [{x.shape[1]}] is needed"
        )
    weight_at, factors = draft.in_dtype(2, with_leading(weight, 2), x.dtype)
    terms = TensorDescriptor.packed(x.shape, x.dtype)
    at = draft.scratch(terms)
    draft.step(SoftmaxForwardProblem(x, terms, SoftmaxAlgorithm.LOG, SoftmaxMode.CHANNEL), place, at)
    draft.step(BinaryProblem(terms, factors, terms, BinaryOperator.MUL, alpha1=-1.0), at, weight_at, at)
    return (at, terms), (weight_at, factors)


def _summed(draft: Draft, place: int, matrix: TensorDescriptor) -> int:
    """The place of the sum over each row, [M, 1], which is also seen as [M]."""
    column = TensorDescriptor.packed((matrix.shape[0], 1), matrix.dtype)
    sums = draft.scratch(column)
    draft.step(ReduceProblem(matrix, column, ReduceOperator.ADD), place, sums)
    return sums


def _of_probabilities(
    draft: Draft, logits: Placed, labels: Placed, weight: TensorDescriptor, settings: CrossEntropyDescriptor
) -> tuple[int, None]:
    """The place of the loss of each row, in the compute type."""
    if labels[1].dtype is not logits[1].dtype:
        raise BadParamError(
            f"target is {labels[1].dtype.value} but logits are {logits[1].dtype.value}; probabilities have their dtype"
        )
    (at, terms), _ = _weighted_terms(draft, logits, weight)
    target_at, targets = draft.in_dtype(*labels, terms.dtype)
    if settings.label_smoothing:
        one = TensorDescriptor.packed((1, 1), terms.dtype)
        share = draft.filled(settings.label_smoothing / max(terms.shape[1], 1), one)
        smooth = draft.scratch(terms)
        draft.step(
            BinaryProblem(targets, one, terms, BinaryOperator.ADD, alpha1=1 - settings.label_smoothing),
            target_at,
            share,
            smooth,
        )
        target_at, targets = smooth, terms
    draft.step(BinaryProblem(terms, targets, terms, BinaryOperator.MUL), at, target_at, at)
    return _summed(draft, at, terms), None


def _of_classes(
    draft: Draft, logits: Placed, labels: Placed, weight: TensorDescriptor, settings: CrossEntropyDescriptor
) -> tuple[int, int]:
    """The places of the loss of each row, and of the sum of the weights of the labels that count; in the compute type.

    What is of a label is chosen, not multiplied by 0: a term may be infinite.
    """
    (at, terms), weights = _weighted_terms(draft, logits, weight)
    (count, _), wide = terms.shape, terms.dtype
    (chosen_at, chosen), (counts_at, counts) = _chosen(draft, labels, terms, settings.ignore_index)
    one, column = (TensorDescriptor.packed(shape, wide) for shape in ((1, 1), (count, 1)))
    zero = draft.filled(0.0, one)
    picked = draft.scratch(terms)
    draft.step(WhereProblem(chosen, weights[1], one, terms), chosen_at, weights[0], zero, picked)
    divisor = draft.scratch(one)
    draft.step(ReduceProblem(terms, one, ReduceOperator.ADD), picked, divisor)
    draft.step(WhereProblem(chosen, terms, one, terms), chosen_at, at, zero, picked)
    losses = _summed(draft, picked, terms)
    if settings.label_smoothing:
        every = _summed(draft, at, terms)
        draft.step(WhereProblem(counts, column, one, column), counts_at, every, zero, every)
        kept, shared = 1 - settings.label_smoothing, settings.label_smoothing / max(terms.shape[1], 1)
        smooth = BinaryProblem(column, column, column, BinaryOperator.ADD, alpha1=kept, alpha2=shared)
        draft.step(smooth, losses, every, losses)
    return losses, divisor


def _chosen(draft: Draft, labels: Placed, terms: TensorDescriptor, ignore_index: int | None) -> tuple[Placed, Placed]:
    """Where a class is a row's label, [M, K], and which rows have one that counts, [M, 1]; both bool.

    The gradient of equal logits is below 0 at the label, above it at other classes, and 0 in rows whose label does not count.
    """
    (count, classes), wide = terms.shape, terms.dtype
    several = max(classes, 2)  # of one class alone the gradient is 0
    equal, slopes = TensorDescriptor(wide, (count, several), (0, 0)), TensorDescriptor.packed((count, several), wide)
    one, column = (TensorDescriptor.packed(shape, wide) for shape in ((1, 1), (count, 1)))
    zero, slope_at, least_at = draft.filled(0.0, one), draft.scratch(slopes), draft.scratch(column)
    plain = CrossEntropyDescriptor(0.0, ignore_index)
    draft.step(CrossEntropyBackwardProblem(equal, labels[1], slopes, plain), zero, labels[0], slope_at)
    of_classes = slopes.with_shape((count, classes))
    draft.step(ReduceProblem(of_classes, column, ReduceOperator.MIN), slope_at, least_at)
    found = []
    for place, each in ((slope_at, of_classes), (least_at, column)):
        is_below = TensorDescriptor.packed(each.shape, DType.BOOL)
        below = draft.scratch(is_below)
        draft.step(BinaryProblem(each, one, is_below, BinaryOperator.LESS), place, zero, below)
        found.append((below, is_below))
    return found[0], found[1]


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
    weight: Operand | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss of logits x [N, K, *places], or [K]: logsumexp(x[n]) - x[n, target[n]].

    Args:
        input: Logits.
        target: Classes [N, *places], of [K] one without dimensions or in [1]: int32, or on the host integers of any width; the loss
            of what is no class is 0, and it does not count in the mean. Or probabilities, of shape and dtype of the logits.
        weight: [K], of any floating-point dtype: a factor of each class's term; None for 1, which is one launch, where weights
            take a dozen.
        size_average: None; PyTorch's former name of a reduction is refused.
        ignore_index: A class whose loss is 0 and does not count in the mean; ignored where classes are probabilities.
        reduce: None, as `size_average`.
        reduction: "mean" over the targets that count, each as much as its class's weight, or over all rows of probabilities; "sum";
            both without dimensions; or "none", [N, *places].
        label_smoothing: Part of every target that is shared out among all K classes.

    Raises:
        BadParamError: shapes disagree, or a setting is none of these.
    """
    if size_average is not None or reduce is not None:
        raise BadParamError(
            f"size_average is {size_average} and reduce {reduce}, which PyTorch has replaced; give reduction= one of "
            f"{', '.join(_REDUCTIONS)}"
        )
    if reduction not in _REDUCTIONS:
        raise BadParamError(f"reduction {reduction!r} is none of {', '.join(_REDUCTIONS)}")
    settings = (ignore_index, reduction, label_smoothing)
    return compute(_cross_entropy, settings, input, _widened(target), weight, optional=1)[0]


def _widened(target: Operand) -> Operand:
    """Labels on the host that are bytes, which tensors can be, as int32; anything else as it is."""
    is_bytes = str(getattr(target, "dtype", "")).endswith("uint8")  # of NumPy or PyTorch
    if not is_bytes or isinstance(target, Tensor) or target.__dlpack_device__() != CPU:
        return target
    return np.asarray(target).astype(np.int32)
