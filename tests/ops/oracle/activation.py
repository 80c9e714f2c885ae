"""Activations, forward and backward."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs, from_numpy

__all__: list[str] = []


def _hard_sigmoid(x: Tensor) -> Tensor:
    """PyTorch's own has a 1/6 in single precision in its gradient."""
    return (x / 6 + 0.5).clamp(0, 1)


def _activate(x: Tensor, activation: ActivationDescriptor) -> Tensor:
    c = activation.coefficient
    return {
        ActivationMode.RELU: F.relu,
        ActivationMode.CLIPPED_RELU: lambda x: F.hardtanh(x, 0.0, c),
        ActivationMode.LEAKY_RELU: lambda x: F.leaky_relu(x, c),
        ActivationMode.SIGMOID: torch.sigmoid,
        ActivationMode.TANH: torch.tanh,
        ActivationMode.ELU: lambda x: F.elu(x, c),
        ActivationMode.SILU: F.silu,
        ActivationMode.GELU: lambda x: x * torch.erfc(-x / math.sqrt(2)) / 2,  # F.gelu cancels below 0
        ActivationMode.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
        ActivationMode.HARD_SIGMOID: _hard_sigmoid,
        ActivationMode.HARD_SWISH: lambda x: x * _hard_sigmoid(x),
    }[activation.mode](x)


@draw_inputs.register
def _(problem: ActivationBackwardProblem, rng: np.random.Generator) -> list[np.ndarray]:
    x = draw(problem.x, rng)
    y = _activate(from_numpy(x), problem.activation).numpy().astype(problem.y.dtype.numpy)
    return [y, draw(problem.dy, rng), x]


@answers.register
def _(problem: ActivationForwardProblem, x: Tensor) -> Terms:
    value = _activate(x, problem.activation)
    if problem.activation.mode in (ActivationMode.HARD_SIGMOID, ActivationMode.HARD_SWISH):
        hard = (x.abs() / 6 + 0.5).clamp(max=1)  # a sum, in which x / 6 and 1/2 may cancel
        return value, hard * (x.abs() if problem.activation.mode is ActivationMode.HARD_SWISH else 1), 2
    # Its 1 + tanh cancels below 0, also in the answer.
    magnitude = x if problem.activation.mode is ActivationMode.GELU_TANH else value
    return value, magnitude.abs(), 1


@answers.register
def _(problem: ActivationBackwardProblem, _y: Tensor, dy: Tensor, x: Tensor) -> Terms:
    leaf = x.clone().requires_grad_()
    (value,) = torch.autograd.grad(_activate(leaf, problem.activation), leaf, dy)
    # Every slope is made of terms of this size; y, from which some are computed, was rounded.
    return value, dy.abs() * (1 + x.abs()), 2
