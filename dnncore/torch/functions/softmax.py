"""Softmax, its logarithm, and cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dnncore.descriptors import CrossEntropyDescriptor, SoftmaxAlgorithm, SoftmaxMode
from dnncore.problems import (
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
)
from dnncore.torch.bridge import describe, launch

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
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        problem = SoftmaxBackwardProblem(describe(y), describe(dy), describe(dx), ctx.algorithm, SoftmaxMode.CHANNEL)
        launch(problem, (y, dy), (dx,))
        return dx, None


def _softmax(x: Tensor, dim: int, algorithm: SoftmaxAlgorithm) -> Tensor:
    # The dimension becomes C of [N, C, *spatial]; a view, whatever it is.
    if x.dim() == 1:
        flat: Tensor = _Softmax.apply(x.unsqueeze(0), algorithm)
        return flat.squeeze(0)
    y: Tensor = _Softmax.apply(x.transpose(1, dim), algorithm)
    return y.transpose(1, dim)


def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) over its sum along a dimension, computed so that it does not overflow."""
    return _softmax(x, dim, SoftmaxAlgorithm.ACCURATE)


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """Its logarithm."""
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
    @once_differentiable
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
    """loss [N] of logits x [N, K] and labels [N]; 0 where a label is no class. Take its mean or sum as torch's `reduction` does."""
    loss: Tensor = _CrossEntropy.apply(x, labels.to(torch.int32), cross_entropy or CrossEntropyDescriptor())
    return loss
