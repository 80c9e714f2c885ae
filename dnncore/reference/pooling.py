"""Pooling: a window moves over the input; the maximum never sees padding, the averages differ in their divisor.

The divisor that counts padding is the window cut to the padded input (as in Caffe and cuDNN v2: what a window of ceil
mode overhangs does not count).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from dnncore.descriptors import PoolingMode
from dnncore.problems import PoolingBackwardProblem, PoolingForwardProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["BACKWARD", "FORWARD"]

PoolingProblem = PoolingForwardProblem | PoolingBackwardProblem


def _places(problem: PoolingProblem) -> Iterator[tuple[slice, ...]]:
    """For each place in the window, in row-major order, the slices of the padded input under it."""
    pooling, output = problem.pooling, problem.y.shape[2:]
    for place in itertools.product(*map(range, pooling.window)):
        yield (
            slice(None),
            slice(None),
            *(
                slice(offset, offset + (extent - 1) * stride + 1, stride)
                for offset, stride, extent in zip(place, pooling.stride, output, strict=True)
            ),
        )


def _padded(problem: PoolingProblem, fill: float) -> tuple[Array, tuple[slice, ...]]:
    """An array large enough for every window, and where x lies in it."""
    pooling, output = problem.pooling, problem.y.shape[2:]
    shape, interior = list(problem.x.shape), [slice(None), slice(None)]
    for i, extent in enumerate(problem.x.shape[2:]):
        before, after = pooling.padding[i]
        reach = (output[i] - 1) * pooling.stride[i] + pooling.window[i]
        shape[2 + i] = max(extent + before + after, reach)
        interior.append(slice(before, before + extent))
    return np.full(shape, fill), tuple(interior)


def _divisor(problem: PoolingProblem) -> Array:
    """How many places each window averages over, [*output]."""
    pooling = problem.pooling
    result = np.ones(())
    for i, extent in enumerate(problem.x.shape[2:]):
        before, after = pooling.padding[i]
        start = np.arange(problem.y.shape[2 + i]) * pooling.stride[i] - before
        low, high = 0, extent
        if pooling.mode is PoolingMode.AVERAGE_INCLUDE_PADDING:
            low, high = -before, extent + after
        counts = np.minimum(start + pooling.window[i], high) - np.maximum(start, low)
        result = result[..., None] * counts
    return result


def _forward(problem: PoolingForwardProblem, x: Array) -> Array:
    is_max = problem.pooling.mode is PoolingMode.MAX
    padded, interior = _padded(problem, -np.inf if is_max else 0.0)
    padded[interior] = x
    result = np.full(problem.y.shape, -np.inf if is_max else 0.0)
    for place in _places(problem):
        result = np.maximum(result, padded[place]) if is_max else result + padded[place]
    return result if is_max else result / _divisor(problem)


def _backward(problem: PoolingBackwardProblem, y: Array, dy: Array, x: Array) -> Array:
    gradient, interior = _padded(problem, 0.0)
    if problem.pooling.mode is not PoolingMode.MAX:
        share = dy / _divisor(problem)
        for place in _places(problem):
            gradient[place] += share
        return gradient[interior]
    padded, _ = _padded(problem, -np.inf)
    padded[interior] = x
    inside, _ = _padded(problem, 0.0)
    inside[interior] = 1.0
    waiting = np.ones(y.shape, bool)
    for place in _places(problem):
        matches = (padded[place] == y) | (np.isnan(padded[place]) & np.isnan(y))
        chosen = waiting & matches & (inside[place] > 0)
        gradient[place] += np.where(chosen, dy, 0.0)
        waiting &= ~chosen
    return gradient[interior]


FORWARD = (ReferenceAlgorithm("window", _forward),)
BACKWARD = (ReferenceAlgorithm("window", _backward),)
