"""Pooling, forward and backward."""

from __future__ import annotations

import math

import numpy as np
import torch

from dnncore.descriptors import PoolingDescriptor, PoolingMode
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs, from_numpy
from tests.ops.oracle.padding import pad

__all__: list[str] = []


def _unfolded(x: Tensor, pooling: PoolingDescriptor, shape: tuple[int, ...], padding: float, overhang: float) -> Tensor:
    """[N, C, *output, places of a window]: covers asymmetric padding and, apart from it, what ceil mode overhangs."""
    reach = [
        max(0, (o - 1) * s + w - (e + before + after))
        for o, s, w, e, (before, after) in zip(
            shape[2:], pooling.stride, pooling.window, x.shape[2:], pooling.padding, strict=True
        )
    ]
    x = pad(pad(x, pooling.padding, padding), tuple((0, extra) for extra in reach), overhang)
    for axis, (window, stride) in enumerate(zip(pooling.window, pooling.stride, strict=True)):
        x = x.unfold(2 + axis, window, stride)
    return x.flatten(-pooling.spatial_ndim)


def _first_maxima(x: Tensor, pooling: PoolingDescriptor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The maximum of each window and its place in the window: of equal ones the first, as torch.argmax promises."""
    values = _unfolded(x, pooling, shape, -math.inf, -math.inf)
    first = values.argmax(-1, keepdim=True)
    return values.gather(-1, first)[..., 0], first


def _indices(x: Tensor, pooling: PoolingDescriptor, shape: tuple[int, ...]) -> Tensor:
    """The place of each window's maximum in its plane."""
    numbers = torch.arange(math.prod(x.shape[2:])).reshape(x.shape[2:]).expand(x.shape)
    _, first = _first_maxima(x, pooling, shape)
    return _unfolded(numbers, pooling, shape, -1, -1).gather(-1, first)[..., 0]


def _pool(x: Tensor, pooling: PoolingDescriptor, shape: tuple[int, ...]) -> Tensor:
    if pooling.mode is PoolingMode.MAX:
        return _first_maxima(x, pooling, shape)[0]
    counts_padding = float(pooling.mode is PoolingMode.AVERAGE_INCLUDE_PADDING)
    count = _unfolded(torch.ones_like(x), pooling, shape, counts_padding, 0.0)
    return _unfolded(x, pooling, shape, 0.0, 0.0).sum(-1) / count.sum(-1)


@draw_inputs.register
def _(problem: PoolingBackwardProblem, rng: np.random.Generator) -> list[np.ndarray]:
    x = draw(problem.x, rng)
    y = _pool(from_numpy(x), problem.pooling, problem.y.shape).numpy().astype(problem.y.dtype.numpy)
    return [y, draw(problem.dy, rng), x]


@draw_inputs.register
def _(problem: PoolingBackwardIndicesProblem, rng: np.random.Generator) -> list[np.ndarray]:
    x = from_numpy(draw(problem.dx, rng))
    return [draw(problem.dy, rng), _indices(x, problem.pooling, problem.dy.shape).numpy().astype(np.int32)]


@answers.register
def _(problem: PoolingForwardProblem, x: Tensor) -> Terms | list[Terms]:
    def pooled(values: Tensor) -> Tensor:
        return _pool(values, problem.pooling, problem.y.shape)

    value = pooled(x)
    magnitude = value.abs() if problem.pooling.mode is PoolingMode.MAX else pooled(x.abs())
    y = value, magnitude, math.prod(problem.pooling.window)
    if problem.indices is None:
        return y
    indices = _indices(x, problem.pooling, problem.y.shape)
    return [y, (indices, indices, 1)]


@answers.register
def _(problem: PoolingBackwardProblem, _y: Tensor, dy: Tensor, x: Tensor) -> Terms:
    def gradient(seed: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(_pool(leaf, problem.pooling, problem.y.shape), leaf, seed)[0]

    return gradient(dy), gradient(dy.abs()), math.prod(problem.pooling.window)


@answers.register
def _(problem: PoolingBackwardIndicesProblem, dy: Tensor, indices: Tensor) -> Terms:
    def gradient(seed: Tensor) -> Tensor:
        leaf = torch.zeros(problem.dx.shape, dtype=torch.float64).flatten(2).requires_grad_()
        (found,) = torch.autograd.grad(leaf.gather(2, indices.flatten(2)), leaf, seed.flatten(2))
        return found.reshape(problem.dx.shape)

    return gradient(dy), gradient(dy.abs()), math.prod(problem.pooling.window)
