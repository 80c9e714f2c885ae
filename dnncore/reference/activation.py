"""Element-wise non-linearities and their derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dnncore.descriptors import ActivationMode
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["BACKWARD", "FORWARD"]


def _sigmoid(x: Array) -> Array:
    # exp of a negative number never overflows, so each half of the axis gets the form that has one.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _forward(problem: ActivationForwardProblem, x: Array) -> Array:
    functions: dict[ActivationMode, Callable[[Array], Array]] = {
        ActivationMode.RELU: _relu,
        ActivationMode.SIGMOID: _sigmoid,
        ActivationMode.TANH: np.tanh,
    }
    return functions[problem.activation.mode](x)


def _backward(problem: ActivationBackwardProblem, y: Array, dy: Array, x: Array) -> Array:
    match problem.activation.mode:
        case ActivationMode.RELU:
            return np.where(x > 0, dy, 0.0)
        case ActivationMode.SIGMOID:
            return dy * y * (1 - y)
        case ActivationMode.TANH:
            return dy * (1 - y * y)


FORWARD = (ReferenceAlgorithm("elementwise", _forward),)
BACKWARD = (ReferenceAlgorithm("elementwise", _backward),)
