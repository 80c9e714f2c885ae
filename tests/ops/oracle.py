"""What the answer is: PyTorch's CPU build in float64, and the magnitude of what went into each element.

The gradients come from autograd, so that nothing here shares a formula with the code under test. Four spatial dimensions, which
PyTorch does not have, come from a loop over every index.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dnncore.descriptors import (
    ActivationMode,
    ConvolutionDescriptor,
    ConvolutionMode,
    PoolingDescriptor,
    PoolingMode,
    SoftmaxAlgorithm,
    SoftmaxMode,
    TensorDescriptor,
)
from dnncore.problems import (
    ActivationBackwardProblem,
    ActivationForwardProblem,
    AddProblem,
    ConvolutionProblem,
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    Direction,
    MatmulProblem,
    PoolingBackwardProblem,
    PoolingForwardProblem,
    Problem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
    SumProblem,
)

__all__ = ["Answer", "make_inputs", "solve"]

Tensor = Any  # torch ships no complete type information for what is used here


@dataclass(frozen=True)
class Answer:
    value: np.ndarray
    magnitude: np.ndarray
    length: int


def make_inputs(problem: Problem, rng: np.random.Generator) -> list[np.ndarray]:
    """Random inputs in the problem's dtypes; what a forward pass would have written is computed from the x drawn."""
    match problem:
        case CrossEntropyForwardProblem() | CrossEntropyBackwardProblem():
            rows, classes = problem.x.shape
            labels = rng.integers(-1, classes + 1, rows).astype(np.int32)
            return [_draw(problem.x.shape, problem.x.dtype.numpy, rng), labels]
        case PoolingBackwardProblem() | ActivationBackwardProblem():
            x = _draw(problem.x.shape, problem.x.dtype.numpy, rng)
            y = _forward(problem, torch.tensor(x, dtype=torch.float64)).numpy().astype(x.dtype)
            return [y, _draw(y.shape, y.dtype, rng), x]
        case SoftmaxBackwardProblem():
            x = _draw(problem.y.shape, problem.y.dtype.numpy, rng)
            y = _softmax(torch.tensor(x, dtype=torch.float64), problem).numpy().astype(x.dtype)
            return [y, _draw(y.shape, y.dtype, rng)]
        case _:
            return [_draw_broadcast(d, rng) for d in problem.inputs]


def _draw_broadcast(descriptor: TensorDescriptor, rng: np.random.Generator) -> np.ndarray:
    """As `_draw`, with one value along each dimension of stride 0."""
    base = tuple(1 if stride == 0 else e for e, stride in zip(descriptor.shape, descriptor.strides, strict=True))
    return np.broadcast_to(_draw(base, descriptor.dtype.numpy, rng), descriptor.shape)


def _draw(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> np.ndarray:
    """Distinct values (so that a maximum is one element's), none near zero, in random order."""
    size = math.prod(shape)
    values = (np.arange(size) + 0.5 + rng.uniform(-0.2, 0.2, size)) / max(size, 1) * 4 - 2
    values = np.where(np.abs(values) < 1e-3, 1e-3, values)
    return rng.permutation(values).reshape(shape).astype(dtype)


def solve(problem: Problem, inputs: list[np.ndarray]) -> Answer:
    tensors = [torch.tensor(a, dtype=torch.float64 if a.dtype.kind == "f" else torch.int64) for a in inputs]
    value, magnitude, length = _solve(problem, *tensors)
    return Answer(value.detach().numpy(), magnitude.detach().numpy(), length)


@singledispatch
def _solve(problem: Any, *inputs: Tensor) -> tuple[Tensor, Tensor, int]:
    raise NotImplementedError(type(problem))


def _pad(x: Tensor, pairs: tuple[tuple[int, int], ...], value: float = 0.0) -> Tensor:
    return F.pad(x, [extent for pair in reversed(pairs) for extent in pair], value=value)


def _convolve(x: Tensor, w: Tensor, conv: ConvolutionDescriptor) -> Tensor:
    if conv.mode is ConvolutionMode.CONVOLUTION:
        w = w.flip(tuple(range(2, w.ndim)))
    padded = _pad(x, conv.padding)
    if conv.spatial_ndim <= 3:
        function = (F.conv1d, F.conv2d, F.conv3d)[conv.spatial_ndim - 1]
        return function(padded, w, stride=conv.stride, dilation=conv.dilation, groups=conv.groups)
    y = torch.zeros(conv.output_shape(x.shape, w.shape), dtype=x.dtype)
    per_group = w.shape[0] // conv.groups
    for n, k in itertools.product(range(y.shape[0]), range(y.shape[1])):
        first = k // per_group * w.shape[1]
        for place in itertools.product(*map(range, y.shape[2:])):
            patch = tuple(
                slice(p * s, p * s + (r - 1) * d + 1, d)
                for p, s, r, d in zip(place, conv.stride, w.shape[2:], conv.dilation, strict=True)
            )
            y[(n, k, *place)] = (padded[(n, slice(first, first + w.shape[1]), *patch)] * w[k]).sum()
    return y


@_solve.register
def _(problem: ConvolutionProblem, *inputs: Tensor) -> tuple[Tensor, Tensor, int]:
    w_taps = math.prod(problem.w.shape[2:])
    if problem.direction is Direction.FORWARD:
        x, w = inputs
        length = problem.w.shape[1] * w_taps
        conv = problem.convolution
        return _convolve(x, w, conv), _convolve(x.abs(), w.abs(), conv), length

    def gradient(first: Tensor, second: Tensor) -> Tensor:
        if problem.direction is Direction.BACKWARD_DATA:
            x, w, wanted = torch.zeros(problem.x.shape, dtype=torch.float64, requires_grad=True), first, "x"
        else:
            x, w, wanted = first, torch.zeros(problem.w.shape, dtype=torch.float64, requires_grad=True), "w"
        y = _convolve(x, w, problem.convolution)
        leaf = x if wanted == "x" else w
        return torch.autograd.grad(y, leaf, second)[0] if y.requires_grad else torch.zeros_like(leaf)

    by_data = problem.w.shape[0] // problem.convolution.groups * w_taps
    by_filter = problem.x.shape[0] * math.prod(problem.y.shape[2:])
    length = by_data if problem.direction is Direction.BACKWARD_DATA else by_filter
    return gradient(*inputs), gradient(*(t.abs() for t in inputs)), max(length, 1)


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
    if pooling.mode is PoolingMode.AVERAGE_INCLUDE_PADDING:
        count = _pad(count, pooling.padding, 1.0)
    else:
        count = _pad(count, pooling.padding)
    overhang = tuple((0, extra) for extra in reach)
    count = _pad(count, overhang)
    x = _pad(_pad(x, pooling.padding, -math.inf if is_max else 0.0), overhang, -math.inf if is_max else 0.0)
    for axis, (window, stride) in enumerate(zip(pooling.window, pooling.stride, strict=True)):
        x, count = x.unfold(2 + axis, window, stride), count.unfold(2 + axis, window, stride)
    axes = tuple(range(-pooling.spatial_ndim, 0))
    return x.amax(axes) if is_max else x.sum(axes) / count.sum(axes)


def _softmax(x: Tensor, problem: SoftmaxForwardProblem | SoftmaxBackwardProblem) -> Tensor:
    flat = x if problem.mode is SoftmaxMode.CHANNEL else x.reshape(x.shape[0], math.prod(x.shape[1:]))
    function = F.log_softmax if problem.algorithm is SoftmaxAlgorithm.LOG else F.softmax
    return function(flat, 1).reshape(x.shape)


def _forward(problem: Any, x: Tensor) -> Tensor:
    if isinstance(problem, PoolingForwardProblem | PoolingBackwardProblem):
        return _pool(x, problem.pooling, problem.y.shape)
    return {
        ActivationMode.RELU: torch.relu,
        ActivationMode.SIGMOID: torch.sigmoid,
        ActivationMode.TANH: torch.tanh,
    }[problem.activation.mode](x)


@_solve.register(PoolingForwardProblem)
@_solve.register(ActivationForwardProblem)
def _(problem: Any, x: Tensor) -> tuple[Tensor, Tensor, int]:
    if isinstance(problem, ActivationForwardProblem):
        value = _forward(problem, x)
        return value, value.abs() + 1e-30, 1
    value = _forward(problem, x)
    magnitude = value.abs() if problem.pooling.mode is PoolingMode.MAX else _forward(problem, x.abs())
    return value, magnitude, math.prod(problem.pooling.window)


@_solve.register(PoolingBackwardProblem)
@_solve.register(ActivationBackwardProblem)
def _(problem: Any, _y: Tensor, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor, int]:
    leaf = x.clone().requires_grad_()
    (value,) = torch.autograd.grad(_forward(problem, leaf), leaf, dy)
    if isinstance(problem, ActivationBackwardProblem):
        return value, dy.abs(), 1
    (magnitude,) = torch.autograd.grad(_forward(problem, leaf), leaf, dy.abs())
    return value, magnitude, math.prod(problem.pooling.window)


@_solve.register
def _(problem: SoftmaxForwardProblem, x: Tensor) -> tuple[Tensor, Tensor, int]:
    value = _softmax(x, problem)
    # A logarithm is the difference of numbers as large as the largest x.
    return value, value.abs() + (4.0 if problem.algorithm is SoftmaxAlgorithm.LOG else 0.0), math.prod(x.shape[1:])


@_solve.register
def _(problem: SoftmaxBackwardProblem, y: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, int]:
    is_log = problem.algorithm is SoftmaxAlgorithm.LOG
    # Any x whose softmax is y will do: its logarithm is one.
    leaf = (y if is_log else y.log()).clone().requires_grad_()
    (value,) = torch.autograd.grad(_softmax(leaf, problem), leaf, dy)
    axes = 1 if problem.mode is SoftmaxMode.CHANNEL else tuple(range(1, y.ndim))
    weight = y.exp() if is_log else y
    total = (dy.abs() if is_log else y * dy.abs()).sum(axes, keepdim=True)
    return value, (dy.abs() + weight * total if is_log else weight * (dy.abs() + total)), math.prod(y.shape[1:])


@_solve.register
def _(problem: AddProblem, a: Tensor) -> tuple[Tensor, Tensor, int]:
    value = a.expand(problem.c.shape)
    return value, value.abs(), 1


@_solve.register
def _(problem: SumProblem, x: Tensor) -> tuple[Tensor, Tensor, int]:
    axes = [axis for axis, extent in enumerate(problem.y.shape) if extent == 1]
    length = max(math.prod(problem.x.shape[axis] for axis in axes), 1)
    return (x.sum(axes, keepdim=True), x.abs().sum(axes, keepdim=True), length) if axes else (x, x.abs(), 1)


@_solve.register
def _(problem: MatmulProblem, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, int]:
    return a @ b, a.abs() @ b.abs(), max(problem.a.shape[1], 1)


def _cross_entropy(x: Tensor, labels: Tensor) -> Tensor:
    known = (labels >= 0) & (labels < x.shape[1])
    loss = F.cross_entropy(x, torch.where(known, labels, 0), reduction="none")
    return torch.where(known, loss, 0.0)


@_solve.register
def _(problem: CrossEntropyForwardProblem, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
    value = _cross_entropy(x, labels)
    return value, value.abs() + 4.0, x.shape[1]


@_solve.register
def _(problem: CrossEntropyBackwardProblem, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
    leaf = x.clone().requires_grad_()
    (value,) = torch.autograd.grad(_cross_entropy(leaf, labels).sum(), leaf)
    return value, torch.ones_like(value), x.shape[1]
