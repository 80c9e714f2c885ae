"""Activations, element by element."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor, ActivationMode, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.formats import like
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.problems import ActivationForwardProblem
from dnncore.tensor import Tensor

__all__ = [
    "elu",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "relu",
    "relu6",
    "sigmoid",
    "silu",
    "tanh",
]


@remembered
def _activation(mode: ActivationMode, coefficient: float, x: TensorDescriptor) -> Operation:
    y = like(x)
    draft = Draft(1, y)
    draft.step(ActivationForwardProblem(x, y, ActivationDescriptor(mode, coefficient)), 0, *draft.results)
    return draft.operation()


def _activated(input: Operand, mode: ActivationMode, coefficient: float = 0.0) -> Tensor:
    return compute(_activation, (mode, coefficient), input)[0]


def relu(input: Operand) -> Tensor:
    """max(x, 0)."""
    return _activated(input, ActivationMode.RELU)


def relu6(input: Operand) -> Tensor:
    """min(max(x, 0), 6)."""
    return _activated(input, ActivationMode.CLIPPED_RELU, 6.0)


def leaky_relu(input: Operand, negative_slope: float = 0.01) -> Tensor:
    """x where x > 0, else negative_slope * x; the slope is 0 or more."""
    return _activated(input, ActivationMode.LEAKY_RELU, negative_slope)


def elu(input: Operand, alpha: float = 1.0) -> Tensor:
    """x where x > 0, else alpha * (exp(x) - 1); alpha is 0 or more."""
    return _activated(input, ActivationMode.ELU, alpha)


_GELU = {"none": ActivationMode.GELU, "tanh": ActivationMode.GELU_TANH}


def gelu(input: Operand, approximate: str = "none") -> Tensor:
    """x P(X <= x), X being normal.

    Args:
        approximate: "none", or "tanh" for x sigmoid(sqrt(8/pi) (x + 0.044715 x^3)).
    """
    mode = _GELU.get(approximate)
    if mode is None:
        raise BadParamError(f"approximate {approximate!r} is none of {', '.join(_GELU)}")
    return _activated(input, mode)


def silu(input: Operand) -> Tensor:
    """x sigmoid(x), also called swish."""
    return _activated(input, ActivationMode.SILU)


def sigmoid(input: Operand) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _activated(input, ActivationMode.SIGMOID)


def tanh(input: Operand) -> Tensor:
    """The hyperbolic tangent."""
    return _activated(input, ActivationMode.TANH)


def hardsigmoid(input: Operand) -> Tensor:
    """min(max(x / 6 + 1/2, 0), 1)."""
    return _activated(input, ActivationMode.HARD_SIGMOID)


def hardswish(input: Operand) -> Tensor:
    """x hardsigmoid(x)."""
    return _activated(input, ActivationMode.HARD_SWISH)
