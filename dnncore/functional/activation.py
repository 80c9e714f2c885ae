"""Activations, element by element; `inplace`, where PyTorch has it, must be False."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor, ActivationMode, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.formats import like, with_leading
from dnncore.functional.operands import Operand, check_not_in_place, compute
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
def _activation(mode: ActivationMode, coefficient: float, given: TensorDescriptor) -> Operation:
    x, draft = with_leading(given, 1), Draft(1, like(given))
    draft.step(ActivationForwardProblem(x, like(x), ActivationDescriptor(mode, coefficient)), 0, *draft.results)
    return draft.operation()


def _activated(input: Operand, mode: ActivationMode, coefficient: float = 0.0) -> Tensor:
    return compute(_activation, (mode, coefficient), input)[0]


def relu(input: Operand, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    check_not_in_place(inplace)
    return _activated(input, ActivationMode.RELU)


def relu6(input: Operand, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    check_not_in_place(inplace)
    return _activated(input, ActivationMode.CLIPPED_RELU, 6.0)


def leaky_relu(input: Operand, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, else negative_slope * x; the slope is 0 or more."""
    check_not_in_place(inplace)
    return _activated(input, ActivationMode.LEAKY_RELU, negative_slope)


def elu(input: Operand, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha * (exp(x) - 1); alpha is 0 or more."""
    check_not_in_place(inplace)
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


def silu(input: Operand, inplace: bool = False) -> Tensor:
    """x sigmoid(x), also called swish."""
    check_not_in_place(inplace)
    return _activated(input, ActivationMode.SILU)


def sigmoid(input: Operand) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _activated(input, ActivationMode.SIGMOID)


def tanh(input: Operand) -> Tensor:
    """The hyperbolic tangent."""
    return _activated(input, ActivationMode.TANH)


def hardsigmoid(input: Operand, inplace: bool = False) -> Tensor:
    """min(max(x / 6 + 1/2, 0), 1)."""
    check_not_in_place(inplace)
    return _activated(input, ActivationMode.HARD_SIGMOID)


def hardswish(input: Operand, inplace: bool = False) -> Tensor:
    """x hardsigmoid(x)."""
    check_not_in_place(inplace)
    return _activated(input, ActivationMode.HARD_SWISH)
