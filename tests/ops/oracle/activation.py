"""Activations, forward and backward."""

from __future__ import annotations

import numpy as np
import torch

from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs, from_numpy

__all__: list[str] = []


def _activate(x: Tensor, activation: ActivationDescriptor) -> Tensor:
    return {
        ActivationMode.RELU: torch.relu,
        ActivationMode.SIGMOID: torch.sigmoid,
        ActivationMode.TANH: torch.tanh,
    }[activation.mode](x)


@draw_inputs.register
def _(problem: ActivationBackwardProblem, rng: np.random.Generator) -> list[np.ndarray]:
    x = draw(problem.x, rng)
    y = _activate(from_numpy(x), problem.activation).numpy().astype(problem.y.dtype.numpy)
    return [y, draw(problem.dy, rng), x]


@answers.register
def _(problem: ActivationForwardProblem, x: Tensor) -> Terms:
    value = _activate(x, problem.activation)
    return value, value.abs() + 1e-30, 1


@answers.register
def _(problem: ActivationBackwardProblem, _y: Tensor, dy: Tensor, x: Tensor) -> Terms:
    leaf = x.clone().requires_grad_()
    (value,) = torch.autograd.grad(_activate(leaf, problem.activation), leaf, dy)
    return value, dy.abs(), 1
