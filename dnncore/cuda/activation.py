"""Activations, forward and backward."""

from __future__ import annotations

from dnncore.cuda.elementwise import elementwise
from dnncore.descriptors import ActivationMode
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem, Problem

__all__ = ["BACKWARD", "FORWARD"]

_NAMES = {ActivationMode.RELU: "Relu", ActivationMode.SIGMOID: "Sigmoid", ActivationMode.TANH: "Tanh"}


def _forward(problem: Problem) -> str:
    assert isinstance(problem, ActivationForwardProblem)
    return f"{_NAMES[problem.activation.mode]}Forward"


def _backward(problem: Problem) -> str:
    assert isinstance(problem, ActivationBackwardProblem)
    return f"{_NAMES[problem.activation.mode]}Backward"


FORWARD = elementwise(tuple(f"{name}Forward" for name in _NAMES.values()), _forward)
BACKWARD = elementwise(tuple(f"{name}Backward" for name in _NAMES.values()), _backward)
