"""Element-wise non-linearities and their slopes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem
from dnncore.reference.launch import Array, exact_and_fast, in_parts

__all__ = ["BACKWARD", "FORWARD", "activate"]

_GELU_FACTOR = math.sqrt(8 / math.pi)
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    # exp of a negative number never overflows, so each half of the axis gets the form that has one.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _normal(x: Array) -> Array:
    """The probability that a normal variable is at most x."""
    # In float64, also of float32: far out in the tail an argument that is rounded moves the value by many of its roundings.
    values: Array = _erfc(x.astype(np.float64) / -math.sqrt(2)) / 2 if x.size else x
    return values


def _density(x: Array) -> Array:
    """Of a normal variable, in float64 as `_normal`."""
    values: Array = np.exp(-0.5 * np.square(x, dtype=np.float64)) / math.sqrt(2 * math.pi)
    return values


def _hard_sigmoid(x: Array) -> Array:
    return np.clip(x / 6 + 0.5, 0, 1)


def _gelu_sigmoid(x: Array) -> Array:
    return _sigmoid(_GELU_FACTOR * (x + 0.044715 * x**3))


_FUNCTIONS: dict[ActivationMode, Callable[[Array, float], Array]] = {
    ActivationMode.RELU: lambda x, _: np.maximum(x, 0),
    ActivationMode.CLIPPED_RELU: lambda x, c: np.clip(x, 0, c),
    ActivationMode.LEAKY_RELU: lambda x, c: np.where(x > 0, x, c * x),
    ActivationMode.SIGMOID: lambda x, _: _sigmoid(x),
    ActivationMode.TANH: lambda x, _: np.tanh(x),
    ActivationMode.ELU: lambda x, c: np.where(x > 0, x, c * np.expm1(x)),
    ActivationMode.SILU: lambda x, _: x * _sigmoid(x),
    ActivationMode.GELU: lambda x, _: x * _normal(x),
    ActivationMode.GELU_TANH: lambda x, _: x * _gelu_sigmoid(x),
    ActivationMode.HARD_SIGMOID: lambda x, _: _hard_sigmoid(x),
    ActivationMode.HARD_SWISH: lambda x, _: x * _hard_sigmoid(x),
}


def _gelu_tanh_slope(x: Array) -> Array:
    s = _gelu_sigmoid(x)
    return s + x * s * (1 - s) * _GELU_FACTOR * (1 + 3 * 0.044715 * x**2)


def _silu_slope(x: Array) -> Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


# Of (x, coefficient): where those have a slope of 1 that have no other but 0.
_GATES: dict[ActivationMode, Callable[[Array, float], npt.NDArray[np.bool_]]] = {
    ActivationMode.RELU: lambda x, _: x > 0,
    ActivationMode.CLIPPED_RELU: lambda x, c: (x > 0) & (x < c),
}

# Of (y, x, coefficient), for the others.
_SLOPES: dict[ActivationMode, Callable[[Array, Array, float], Array]] = {
    ActivationMode.LEAKY_RELU: lambda _, x, c: np.where(x > 0, 1.0, c),
    ActivationMode.SIGMOID: lambda y, _, __: y * (1 - y),
    ActivationMode.TANH: lambda y, _, __: 1 - y * y,
    ActivationMode.ELU: lambda _, x, c: np.where(x > 0, 1.0, c * np.exp(x)),
    ActivationMode.SILU: lambda _, x, __: _silu_slope(x),
    ActivationMode.GELU: lambda _, x, __: _normal(x) + x * _density(x),
    ActivationMode.GELU_TANH: lambda _, x, __: _gelu_tanh_slope(x),
    ActivationMode.HARD_SIGMOID: lambda _, x, __: np.where((x > -3) & (x < 3), 1 / 6, 0.0),
    ActivationMode.HARD_SWISH: lambda _, x, __: np.where(x <= -3, 0.0, np.where(x < 3, x / 3 + 0.5, 1.0)),
}


def activate(activation: ActivationDescriptor, x: Array) -> Array:
    """f(x), element by element."""
    return _FUNCTIONS[activation.mode](x, activation.coefficient)


def _forward(problem: ActivationForwardProblem, x: Array) -> Array:
    return activate(problem.activation, x)


def _backward(problem: ActivationBackwardProblem, y: Array, dy: Array, x: Array) -> Array:
    """dy times the slope; a slope of exactly 0 lets no NaN or infinity of dy through."""
    mode, coefficient = problem.activation.mode, problem.activation.coefficient
    if mode in _GATES:
        gate = _GATES[mode](x, coefficient)
        product: Array = dy * gate  # many times faster than a choice for each element, where both give the same
        return product if np.isfinite(product).all() else np.where(gate, dy, 0.0)
    slope = _SLOPES[mode](y, x, coefficient)
    return np.where(slope == 0, 0.0, dy * slope)


FORWARD = exact_and_fast("elementwise", _forward, in_parts(_forward, 0))
BACKWARD = exact_and_fast("elementwise", _backward, in_parts(_backward, 0))
