"""Activations, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.handle import Handle
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem
from dnncore.tensor import Tensor

__all__ = ["RELU", "SIGMOID", "TANH", "activation_backward", "activation_forward"]

RELU = ActivationDescriptor(ActivationMode.RELU)
"""max(x, 0)."""

SIGMOID = ActivationDescriptor(ActivationMode.SIGMOID)
"""1 / (1 + exp(-x))."""

TANH = ActivationDescriptor(ActivationMode.TANH)
"""tanh(x)."""


def activation_forward(
    handle: Handle, activation: ActivationDescriptor, alpha: float, x: Tensor, beta: float, y: Tensor
) -> None:
    """y = f(x), element by element; y may be x."""
    handle.execute(ActivationForwardProblem, (x.descriptor, y.descriptor, activation), alpha, (x,), beta, (y,))


def activation_backward(
    handle: Handle,
    activation: ActivationDescriptor,
    alpha: float,
    y: Tensor,
    dy: Tensor,
    x: Tensor,
    beta: float,
    dx: Tensor,
) -> None:
    """dx = f'(x) * dy, element by element; dx may be dy."""
    arguments = (y.descriptor, dy.descriptor, x.descriptor, dx.descriptor, activation)
    handle.execute(ActivationBackwardProblem, arguments, alpha, (y, dy, x), beta, (dx,))
