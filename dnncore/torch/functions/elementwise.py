"""Activations and dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import ActivationDescriptor
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem, DropoutProblem
from dnncore.torch.bridge import describe, launch
from dnncore.torch.functions.gradients import first_derivative

__all__ = ["activation", "dropout"]


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: ActivationDescriptor) -> Tensor:
        y = torch.empty_like(x)
        launch(ActivationForwardProblem(describe(x), describe(y), activation), (x,), (y,))
        ctx.save_for_backward(x, y)
        ctx.activation = activation
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        dx = torch.empty_like(x)
        problem = ActivationBackwardProblem(describe(y), describe(dy), describe(x), describe(dx), ctx.activation)
        launch(problem, (y, dy, x), (dx,))
        return dx, None


def activation(x: Tensor, activation: ActivationDescriptor) -> Tensor:
    """f(x), element by element; x has 1 to 8 dimensions."""
    y: Tensor = _Activation.apply(x, activation)
    return y


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float, state: Tensor) -> Tensor:
        y = torch.empty_like(x)
        launch(DropoutProblem(describe(x), describe(state), describe(y), probability), (x, state), (y,))
        ctx.save_for_backward(state)
        ctx.probability = probability
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (state,) = ctx.saved_tensors
        dx = torch.empty_like(dy)
        launch(DropoutProblem(describe(dy), describe(state), describe(dx), ctx.probability), (dy, state), (dx,))
        return dx, None, None


def dropout(x: Tensor, p: float = 0.5, training: bool = True, state: Tensor | None = None) -> Tensor:
    """x / (1 - p), or 0 with probability p; x outside training.

    Args:
        state: int32 [4] on x's device, seed and offset (`dnncore.ops.dropout_state`); None draws one from PyTorch's generator of
            the CPU, which `torch.manual_seed` seeds.
    """
    if not training:
        return x
    if state is None:
        state = torch.randint(-(2**31), 2**31, (4,), dtype=torch.int32).to(x.device)
    y: Tensor = _Dropout.apply(x, p, state)
    return y
