"""Pooling, forward and backward."""

from __future__ import annotations

import math

import numpy as np
import torch

from dnncore.descriptors import PoolingDescriptor, PoolingMode
from dnncore.problems import PoolingBackwardProblem, PoolingForwardProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs, from_numpy
from tests.ops.oracle.padding import pad

__all__: list[str] = []


def _pool(x: Tensor, pooling: PoolingDescriptor, shape: tuple[int, ...]) -> Tensor:
    """Through unfolding: each window's elements in one dimension, which covers asymmetric padding and every divisor."""
    is_max = pooling.mode is PoolingMode.MAX
    reach = [
        max(0, (o - 1) * s + w - (e + before + after))
        for o, s, w, e, (before, after) in zip(
            shape[2:], pooling.stride, pooling.window, x.shape[2:], pooling.padding, strict=True
        )
    ]
    count = torch.ones_like(x)
    count = pad(count, pooling.padding, float(pooling.mode is PoolingMode.AVERAGE_INCLUDE_PADDING))
    overhang = tuple((0, extra) for extra in reach)
    count = pad(count, overhang)
    x = pad(pad(x, pooling.padding, -math.inf if is_max else 0.0), overhang, -math.inf if is_max else 0.0)
    for axis, (window, stride) in enumerate(zip(pooling.window, pooling.stride, strict=True)):
        x, count = x.unfold(2 + axis, window, stride), count.unfold(2 + axis, window, stride)
    axes = tuple(range(-pooling.spatial_ndim, 0))
    return x.amax(axes) if is_max else x.sum(axes) / count.sum(axes)


@draw_inputs.register
def _(problem: PoolingBackwardProblem, rng: np.random.Generator) -> list[np.ndarray]:
    x = draw(problem.x, rng)
    y = _pool(from_numpy(x), problem.pooling, problem.y.shape).numpy().astype(problem.y.dtype.numpy)
    return [y, draw(problem.dy, rng), x]


@answers.register
def _(problem: PoolingForwardProblem, x: Tensor) -> Terms:
    def pooled(values: Tensor) -> Tensor:
        return _pool(values, problem.pooling, problem.y.shape)

    value = pooled(x)
    magnitude = value.abs() if problem.pooling.mode is PoolingMode.MAX else pooled(x.abs())
    return value, magnitude, math.prod(problem.pooling.window)


@answers.register
def _(problem: PoolingBackwardProblem, _y: Tensor, dy: Tensor, x: Tensor) -> Terms:
    def gradient(seed: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(_pool(leaf, problem.pooling, problem.y.shape), leaf, seed)[0]

    return gradient(dy), gradient(dy.abs()), math.prod(problem.pooling.window)
