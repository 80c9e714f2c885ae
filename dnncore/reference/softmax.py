"""Softmax over the channels at each place, or over everything in an image."""

from __future__ import annotations

import numpy as np

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.problems import SoftmaxBackwardProblem, SoftmaxForwardProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["BACKWARD", "FORWARD"]


def _axes(problem: SoftmaxForwardProblem | SoftmaxBackwardProblem) -> tuple[int, ...]:
    return (1,) if problem.mode is SoftmaxMode.CHANNEL else tuple(range(1, problem.y.ndim))


def _forward(problem: SoftmaxForwardProblem, x: Array) -> Array:
    if x.size == 0:
        return x
    axes = _axes(problem)
    if problem.algorithm is not SoftmaxAlgorithm.FAST:
        largest: Array = x.max(axes, keepdims=True)
        x = x - largest
    exponentials = np.exp(x)
    total: Array = exponentials.sum(axes, keepdims=True)
    return x - np.log(total) if problem.algorithm is SoftmaxAlgorithm.LOG else exponentials / total


def _backward(problem: SoftmaxBackwardProblem, y: Array, dy: Array) -> Array:
    axes = _axes(problem)
    is_log = problem.algorithm is SoftmaxAlgorithm.LOG
    total: Array = (dy if is_log else y * dy).sum(axes, keepdims=True)
    return dy - np.exp(y) * total if is_log else y * (dy - total)


FORWARD = (ReferenceAlgorithm("rows", _forward),)
BACKWARD = (ReferenceAlgorithm("rows", _backward),)
