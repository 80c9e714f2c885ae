"""Steps of optimizers by PyTorch's, from which the direction is taken: a step of rate 1 from weights of 0, or from the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dnncore.problems import AdamProblem, MomentumProblem
from dnncore.problems.optimizer import OptimizerProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs

_LATE = 10**9
"""A step in which Adam's corrections are 1."""


@draw_inputs.register
def _(problem: OptimizerProblem, rng: np.random.Generator) -> list[np.ndarray]:
    drawn = [draw(descriptor, rng) for descriptor in problem.inputs]
    return [abs(x) if name.startswith("square") else x for name, x in zip(problem.input_names, drawn, strict=True)]


def _kinds(problem: OptimizerProblem, inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """Of each parameter its gradient, its states and its weight, which is 0 where it is not read."""
    count = len(problem.weights)
    kinds = [inputs[start : start + count] for start in range(0, len(inputs), count)]
    if not problem.decay:
        kinds.append(tuple(torch.zeros_like(g) for g in kinds[0]))
    return list(zip(*kinds, strict=True))


def _step(optimizer: Any, weight: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
    """The direction; the state becomes the new one."""
    before = weight.detach().clone()
    weight.grad = gradient.clone()
    optimizer.state[weight] = state
    optimizer.step()
    return before - weight.detach()


def _split(found: list[list[Terms]]) -> list[Terms]:
    """Kind by kind."""
    return [terms for kind in zip(*found, strict=True) for terms in kind]


@answers.register
def _(problem: MomentumProblem, *inputs: Tensor) -> list[Terms]:
    found = []
    for g, *velocity, w in _kinds(problem, inputs):
        weight = w.clone().requires_grad_()
        optimizer = torch.optim.SGD(
            [weight], 1.0, problem.momentum, weight_decay=problem.decay, nesterov=problem.nesterov
        )
        state = {"momentum_buffer": velocity[0].clone()} if velocity else {}
        direction = _step(optimizer, weight, g, state)
        size = g.abs() + problem.decay * w.abs()
        if not velocity:
            found.append([(direction, size, 2)])
            continue
        sum_of_sizes = size + problem.momentum * velocity[0].abs()
        ahead = size + problem.momentum * sum_of_sizes if problem.nesterov else sum_of_sizes
        found.append([(direction, ahead, 4), (optimizer.state[weight]["momentum_buffer"], sum_of_sizes, 3)])
    return _split(found)


@answers.register
def _(problem: AdamProblem, *inputs: Tensor) -> list[Terms]:
    found = []
    first, second = problem.momentum, problem.momentum2
    for g, mean, square, w in _kinds(problem, inputs):
        weight = w.clone().requires_grad_()
        optimizer = torch.optim.Adam([weight], 1.0, (first, second), problem.epsilon, weight_decay=problem.decay)
        state = {"step": torch.tensor(float(_LATE)), "exp_avg": mean.clone(), "exp_avg_sq": square.clone()}
        direction = _step(optimizer, weight, g, state)
        after = optimizer.state[weight]
        size = g.abs() + problem.decay * w.abs()
        of_mean = first * mean.abs() + (1 - first) * size
        of_square = second * square + (1 - second) * size**2
        root = after["exp_avg_sq"].sqrt()
        below = root + problem.epsilon
        # The mean's roundings, and those of the squares, of which the root has half, relative to what is divided by.
        size_of_direction = of_mean / below + direction.abs() * of_square / (2 * root * below)
        found.append(
            [(direction, size_of_direction, 4), (after["exp_avg"], of_mean, 3), (after["exp_avg_sq"], of_square, 4)]
        )
    return _split(found)
