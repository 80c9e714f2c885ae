"""Softmax, forward and backward."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.problems import SoftmaxBackwardProblem, SoftmaxForwardProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs, from_numpy

__all__: list[str] = []


def _softmax(x: Tensor, problem: SoftmaxForwardProblem | SoftmaxBackwardProblem) -> Tensor:
    flat = x if problem.mode is SoftmaxMode.CHANNEL else x.reshape(x.shape[0], math.prod(x.shape[1:]))
    function = F.log_softmax if problem.algorithm is SoftmaxAlgorithm.LOG else F.softmax
    return function(flat, 1).reshape(x.shape)


@draw_inputs.register
def _(problem: SoftmaxBackwardProblem, rng: np.random.Generator) -> list[np.ndarray]:
    y = _softmax(from_numpy(draw(problem.y, rng)), problem).numpy().astype(problem.y.dtype.numpy)
    return [y, draw(problem.dy, rng)]


@answers.register
def _(problem: SoftmaxForwardProblem, x: Tensor) -> Terms:
    value = _softmax(x, problem)
    # A logarithm is the difference of numbers as large as the largest x.
    return value, value.abs() + (4.0 if problem.algorithm is SoftmaxAlgorithm.LOG else 0.0), math.prod(x.shape[1:])


@answers.register
def _(problem: SoftmaxBackwardProblem, y: Tensor, dy: Tensor) -> Terms:
    is_log = problem.algorithm is SoftmaxAlgorithm.LOG
    # Any x whose softmax is y will do: its logarithm is one, apart from what a row of 16-bit y, rounded, lacks of adding up to 1.
    leaf = (y if is_log else y.log()).clone().requires_grad_()
    (value,) = torch.autograd.grad(_softmax(leaf, problem), leaf, dy)
    axes = 1 if problem.mode is SoftmaxMode.CHANNEL else tuple(range(1, y.ndim))
    weight = y.exp() if is_log else y
    total = (dy.abs() if is_log else y * dy.abs()).sum(axes, keepdim=True)
    return value, (dy.abs() + weight * total if is_log else weight * (dy.abs() + total)), math.prod(y.shape[1:])
