"""Steps of optimizers, one parameter after the other."""

from __future__ import annotations

import numpy as np

from dnncore.problems import AdamProblem, MomentumProblem
from dnncore.problems.optimizer import OptimizerProblem
from dnncore.reference.launch import Array, exact_and_fast

__all__ = ["ADAM", "MOMENTUM"]


def _operands(problem: OptimizerProblem, arrays: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    """Of each parameter: the gradient with what the decay adds, and the states."""
    count = len(problem.weights)
    kinds = [arrays[start : start + count] for start in range(0, len(arrays), count or 1)]
    if problem.decay:
        gradients, weights = kinds[0], kinds.pop()
        kinds[0] = tuple(g + problem.decay * w for g, w in zip(gradients, weights, strict=True))
    return list(zip(*kinds, strict=True))


def _momentum(problem: MomentumProblem, *arrays: Array) -> tuple[Array, ...]:
    operands = _operands(problem, arrays)
    if not problem.momentum:
        return tuple(d for (d,) in operands)
    velocities = [problem.momentum * v + d for d, v in operands]
    if not problem.nesterov:
        return (*velocities, *velocities)
    ahead = [d + problem.momentum * v for (d, _), v in zip(operands, velocities, strict=True)]
    return (*ahead, *velocities)


def _adam(problem: AdamProblem, *arrays: Array) -> tuple[Array, ...]:
    first, second = problem.momentum, problem.momentum2
    directions, means, squares = [], [], []
    for d, mean, square in _operands(problem, arrays):
        means.append(first * mean + (1 - first) * d)
        squares.append(second * square + (1 - second) * d * d)
        directions.append(means[-1] / (np.sqrt(squares[-1]) + problem.epsilon))
    return (*directions, *means, *squares)


MOMENTUM = exact_and_fast("momentum", _momentum)
ADAM = exact_and_fast("adam", _adam)
