"""Softmax, its logarithm, and cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import CrossEntropyDescriptor, SoftmaxAlgorithm, SoftmaxMode
from dnncore.errors import BadParamError
from dnncore.problems import (
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
)
from dnncore.torch.bridge import describe, launch
from dnncore.torch.functions.formats import widened
from dnncore.torch.functions.gradients import first_derivative

__all__ = ["cross_entropy", "log_softmax", "softmax"]


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, algorithm: SoftmaxAlgorithm) -> Tensor:
        y = torch.empty_like(x)
        problem = SoftmaxForwardProblem(describe(x), describe(y), algorithm, SoftmaxMode.CHANNEL)
        launch(problem, (x,), (y,))
        ctx.save_for_backward(y)
        ctx.algorithm = algorithm
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        problem = SoftmaxBackwardProblem(describe(y), describe(dy), describe(dx), ctx.algorithm, SoftmaxMode.CHANNEL)
        launch(problem, (y, dy), (dx,))
        return dx, None


def _softmax(x: Tensor, dim: int, algorithm: SoftmaxAlgorithm) -> Tensor:
    x = widened(x)
    # The dimension becomes C of [N, C, *spatial]; a view, whatever it is.
    if x.dim() == 1:
        flat: Tensor = _Softmax.apply(x.unsqueeze(0), algorithm)
        return flat.squeeze(0)
    y: Tensor = _Softmax.apply(x.transpose(1, dim), algorithm)
    return y.transpose(1, dim)


def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) over its sum along a dimension, computed so that it does not overflow; in float32 under `torch.autocast`."""
    return _softmax(x, dim, SoftmaxAlgorithm.ACCURATE)


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """The logarithm of softmax; in float32 under `torch.autocast`."""
    return _softmax(x, dim, SoftmaxAlgorithm.LOG)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, cross_entropy: CrossEntropyDescriptor) -> Tensor:
        loss = x.new_empty(x.shape[0])
        launch(
            CrossEntropyForwardProblem(describe(x), describe(labels), describe(loss), cross_entropy),
            (x, labels),
            (loss,),
        )
        ctx.save_for_backward(x, labels)
        ctx.cross_entropy = cross_entropy
        return loss

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        x, labels = ctx.saved_tensors
        dx = torch.empty_like(x)
        launch(
            CrossEntropyBackwardProblem(describe(x), describe(labels), describe(dx), ctx.cross_entropy),
            (x, labels),
            (dx,),
        )
        return dx * dloss.unsqueeze(1), None, None


def cross_entropy(x: Tensor, labels: Tensor, cross_entropy: CrossEntropyDescriptor | None = None) -> Tensor:
    """loss [N, *places] of logits x [N, K, *places], and of [K] a scalar; in float32 under `torch.autocast`.

    Args:
        labels: Classes, integers of the shape of the loss, with a loss of 0 where one is no class; or probabilities of x's shape,
            which get no gradient.
        cross_entropy: Label smoothing and the label to ignore.

    Take the loss's mean or sum as torch's `reduction` does.

    Raises:
        BadParamError: labels of another shape, or that need a gradient.
    """
    if x.dim() == 1:
        return _losses(x.unsqueeze(0), labels.unsqueeze(0), cross_entropy).squeeze(0)
    return _losses(x, labels, cross_entropy)


def _losses(x: Tensor, labels: Tensor, cross_entropy: CrossEntropyDescriptor | None) -> Tensor:
    soft = labels.is_floating_point()
    expected = x.shape if soft else (x.shape[0], *x.shape[2:])
    if labels.shape != expected:
        raise BadParamError(
            f"labels have shape {tuple(labels.shape)} but logits {tuple(x.shape)} need {tuple(expected)}"
        )
    if labels.requires_grad and torch.is_grad_enabled():
        raise BadParamError("labels need a gradient, which cross_entropy does not compute; detach them")
    logits = widened(x).movedim(1, -1)
    targets = labels.to(logits.dtype).movedim(1, -1).flatten(0, -2) if soft else labels.to(torch.int32).flatten()
    loss: Tensor = _CrossEntropy.apply(logits.flatten(0, -2), targets, cross_entropy or CrossEntropyDescriptor())
    return loss.reshape(logits.shape[:-1])
