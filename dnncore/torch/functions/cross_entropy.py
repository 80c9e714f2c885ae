"""Cross-entropy of logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import BinaryOperator, CrossEntropyDescriptor, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems import BinaryProblem, CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from dnncore.torch.bridge import operate
from dnncore.torch.functions.draft import Draft
from dnncore.torch.functions.formats import wants_gradient, widened
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.functions.softmax import log_softmax
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation, Place

__all__ = ["as_classes", "counted", "cross_entropy"]

_PLAIN = CrossEntropyDescriptor()
_LABEL_BYTES = 4


def _classes_last(tensor: TensorDescriptor) -> TensorDescriptor:
    """[N, K, *places] as [N, *places, K]."""
    return tensor.transposed(0, *range(2, tensor.ndim), 1)


def _column(tensor: TensorDescriptor) -> TensorDescriptor:
    """[N, *places] as [N, *places, 1]."""
    return TensorDescriptor(tensor.dtype, (*tensor.shape, 1), (*tensor.strides, 1))


def _operands(
    draft: Draft, x: TensorDescriptor, labels: TensorDescriptor
) -> tuple[tuple[TensorDescriptor, TensorDescriptor], tuple[Place, Place]]:
    """Logits [M, K], and their labels [M] or [M, K], with their places."""
    logits, logits_at = draft.rows(_classes_last(x), 0)
    if labels.dtype.is_floating:
        targets, targets_at = draft.rows(_classes_last(labels), 1)
    else:
        column, targets_at = draft.rows(_column(labels), 1)
        targets = TensorDescriptor(column.dtype, column.shape[:1], column.strides[:1])
    return (logits, targets), (logits_at, targets_at)


def _forward(settings: CrossEntropyDescriptor, x: TensorDescriptor, labels: TensorDescriptor) -> Operation:
    """(x, labels) -> loss [N, *places]."""
    draft = Draft(2)
    loss = draft.make(TensorDescriptor.packed((x.shape[0], *x.shape[2:]), x.dtype))
    (logits, targets), places = _operands(draft, x, labels)
    losses = TensorDescriptor.packed(logits.shape[:1], x.dtype)
    draft.step(CrossEntropyForwardProblem(logits, targets, losses, settings), *places, loss)
    return draft.operation()


def _backward(
    settings: CrossEntropyDescriptor, x: TensorDescriptor, labels: TensorDescriptor, dloss: TensorDescriptor
) -> Operation:
    """(x, labels, dloss) -> dx, whose classes are neighbours in memory."""
    draft = Draft(3)
    last = TensorDescriptor.packed((x.shape[0], *x.shape[2:], x.shape[1]), x.dtype)
    result = draft.make(last.transposed(0, x.ndim - 1, *range(1, x.ndim - 1)))
    (logits, targets), places = _operands(draft, x, labels)
    seeds, seeds_at = draft.rows(_column(dloss), 2)
    dx = TensorDescriptor.packed(logits.shape, x.dtype)
    draft.step(CrossEntropyBackwardProblem(logits, targets, dx, settings), *places, result)
    draft.step(BinaryProblem(dx, seeds, dx, BinaryOperator.MUL), result, seeds_at, result)
    return draft.operation()


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, settings: CrossEntropyDescriptor) -> Tensor:
        loss, *_ = operate(_forward, (settings,), (x, labels))
        ctx.save_for_backward(x, labels)
        ctx.settings = settings
        return loss

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dx, *_ = operate(_backward, (ctx.settings,), (*ctx.saved_tensors, dloss))
        return dx, None, None


@breaks_graph
def cross_entropy(
    x: Tensor,
    labels: Tensor,
    cross_entropy: CrossEntropyDescriptor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """loss [N, *places] of logits x [N, K, *places], and of [K] a scalar; in float32 under `torch.autocast`.

    Args:
        labels: Classes, integers of the shape of the loss, with a loss of 0 where one is no class; or probabilities of x's shape.
        cross_entropy: Label smoothing and the label to ignore.
        weight: [K], a factor of each class's term; None for 1.

    Take the loss's mean or sum as torch's `reduction` does. Without weights, and where probabilities need no gradient, a loss is
    one launch; else it is the logarithm of softmax, and what PyTorch makes of it.

    Raises:
        BadParamError: labels or weights of another shape.
    """
    if x.dim() == 1:
        return _losses(x.unsqueeze(0), labels.unsqueeze(0), cross_entropy or _PLAIN, weight).squeeze(0)
    return _losses(x, labels, cross_entropy or _PLAIN, weight)


def _losses(x: Tensor, labels: Tensor, settings: CrossEntropyDescriptor, weight: Tensor | None) -> Tensor:
    soft = labels.is_floating_point()
    labels = as_classes(labels)
    expected = x.shape if soft else (x.shape[0], *x.shape[2:])
    if labels.shape != expected:
        raise BadParamError(
            f"labels have shape {tuple(labels.shape)} but logits {tuple(x.shape)} need {tuple(expected)}"
        )
    if weight is not None or (soft and wants_gradient(labels)):
        return _composed(x, labels, settings, weight)
    logits = widened(x)
    targets = labels.to(logits.dtype if soft else torch.int32)
    if wants_gradient(logits):
        loss: Tensor = _CrossEntropy.apply(logits, targets, settings)
        return loss
    return operate(_forward, (settings,), (logits, targets))[0]


def as_classes(labels: Tensor) -> Tensor:
    """Labels in a type that holds the number of classes and what is ignored too: in 8 bits comparisons with these would wrap."""
    return labels if labels.is_floating_point() or labels.element_size() >= _LABEL_BYTES else labels.int()


def counted(labels: Tensor, classes: int, ignore_index: int | None) -> Tensor:
    """Where labels are classes from 0 up to, not including, `classes`, and not ignored; boolean."""
    found = (labels >= 0) & (labels < classes)
    return found if ignore_index is None else found & (labels != ignore_index)


def _composed(x: Tensor, labels: Tensor, settings: CrossEntropyDescriptor, weight: Tensor | None) -> Tensor:
    """As `cross_entropy`, of operations of which PyTorch has the gradients."""
    smoothing, classes = settings.label_smoothing, x.shape[1]
    if weight is not None and weight.shape != (classes,):
        raise BadParamError(
            f"weight has shape {tuple(weight.shape)} but logits {tuple(x.shape)} have {classes} classes"
        )
    terms = -log_softmax(x, 1)
    if weight is not None:
        terms = terms * weight.to(terms.dtype).view(-1, *(1,) * (x.dim() - 2))
    if labels.is_floating_point():
        targets = labels.to(terms.dtype)
        if smoothing:
            targets = (1 - smoothing) * targets + smoothing / classes
        return (terms * targets).sum(1)
    mask = counted(labels, classes, settings.ignore_index)
    index = labels.masked_fill(~mask, 0).to(torch.int64)
    loss = terms.gather(1, index.unsqueeze(1)).squeeze(1)
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing / classes * terms.sum(1)
    return loss.masked_fill(~mask, 0)
