"""Pooling: a window moves over the input; the maximum never sees padding, the averages differ in their divisor.

The divisor that counts padding is the window cut to the padded input (as in Caffe and cuDNN v2: what a window of ceil
mode overhangs does not count).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dnncore.descriptors import PoolingDescriptor, PoolingMode
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["BACKWARD", "BACKWARD_INDICES", "FORWARD"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Windows:
    """How the windows lie over the input. Immutable."""

    pooling: PoolingDescriptor
    x: tuple[int, ...]
    y: tuple[int, ...]

    def places(self) -> Iterator[tuple[slice, ...]]:
        """For each place in the window, in row-major order, the slices of the padded input under it."""
        for place in itertools.product(*map(range, self.pooling.window)):
            yield (
                slice(None),
                slice(None),
                *(
                    slice(offset, offset + (extent - 1) * stride + 1, stride)
                    for offset, stride, extent in zip(place, self.pooling.stride, self.y[2:], strict=True)
                ),
            )

    def padded(self, fill: float) -> tuple[Array, tuple[slice, ...]]:
        """An array large enough for every window, and where x lies in it."""
        shape, interior = list(self.x), [slice(None), slice(None)]
        for i, extent in enumerate(self.x[2:]):
            before, after = self.pooling.padding[i]
            reach = (self.y[2 + i] - 1) * self.pooling.stride[i] + self.pooling.window[i]
            shape[2 + i] = max(extent + before + after, reach)
            interior.append(slice(before, before + extent))
        return np.full(shape, fill), tuple(interior)

    def divisor(self) -> Array:
        """How many places each window averages over, [*output]."""
        result = np.ones(())
        for i, extent in enumerate(self.x[2:]):
            before, after = self.pooling.padding[i]
            start = np.arange(self.y[2 + i]) * self.pooling.stride[i] - before
            low, high = 0, extent
            if self.pooling.mode is PoolingMode.AVERAGE_INCLUDE_PADDING:
                low, high = -before, extent + after
            counts = np.minimum(start + self.pooling.window[i], high) - np.maximum(start, low)
            result = result[..., None] * counts
        return result

    def numbers(self) -> Indices:
        """Under each place of a padded plane, [1, 1, *padded], its place in the plane, in row-major order; -1 in the padding."""
        padded, interior = replace(self, x=(1, 1, *self.x[2:])).padded(-1)
        padded[interior] = np.arange(math.prod(self.x[2:])).reshape(self.x[2:])
        return padded.astype(np.int64)

    def _candidates(self, x: Array) -> Array:
        padded, interior = self.padded(-np.inf)
        padded[interior] = x if self.pooling.propagate_nan else np.where(np.isnan(x), -np.inf, x)
        return padded

    def maximum(self, x: Array) -> Array:
        """The maximum of each window."""
        padded, best = self._candidates(x), np.full(self.y, -np.inf)
        for place in self.places():
            np.maximum(best, padded[place], out=best)
        return best

    def winners(self, x: Array) -> Indices:
        """Where the maximum of each window is first; of nothing but minus infinity, the first place in the input."""
        padded, numbers = self._candidates(x), self.numbers()
        has_nan = bool(np.isnan(padded).any())
        first = np.full((1, 1, *self.y[2:]), -1)
        for place in self.places():
            first = np.where(first < 0, numbers[place], first)
        best, winner = np.full(self.y, -np.inf), np.broadcast_to(first, self.y)
        for place in self.places():
            value = padded[place]
            takes = value > best
            if has_nan:
                takes |= np.isnan(value) & ~np.isnan(best)
            winner = np.where(takes, numbers[place], winner)
            np.maximum(best, value, out=best)
        return winner

    def average(self, x: Array) -> Array:
        padded, interior = self.padded(0.0)
        padded[interior] = x
        total = np.zeros(self.y)
        for place in self.places():
            total += padded[place]
        return total / self.divisor()

    def spread(self, share: Array, winner: Indices | None = None) -> Array:
        """Add a share to every place of its window, or only to that one which wins it."""
        gradient, interior = self.padded(0.0)
        numbers = None if winner is None else self.numbers()
        for place in self.places():
            gradient[place] += share if numbers is None else np.where(numbers[place] == winner, share, 0.0)
        return gradient[interior]


def _forward(problem: PoolingForwardProblem, x: Array) -> Array | tuple[Array, ...]:
    windows = _Windows(problem.pooling, problem.x.shape, problem.y.shape)
    if problem.pooling.mode is not PoolingMode.MAX:
        return windows.average(x)
    best = windows.maximum(x)
    return best if problem.indices is None else (best, windows.winners(x).astype(np.float64))


def _backward(problem: PoolingBackwardProblem, _y: Array, dy: Array, x: Array) -> Array:
    windows = _Windows(problem.pooling, problem.x.shape, problem.y.shape)
    if problem.pooling.mode is not PoolingMode.MAX:
        return windows.spread(dy / windows.divisor())
    return windows.spread(dy, windows.winners(x))


def _backward_indices(problem: PoolingBackwardIndicesProblem, dy: Array, indices: npt.NDArray[np.int32]) -> Array:
    windows = _Windows(problem.pooling, problem.dx.shape, problem.dy.shape)
    return windows.spread(dy, np.where(indices < 0, -2, indices).astype(np.int64))  # -1 is the padding's number


FORWARD = (ReferenceAlgorithm("window", _forward),)
BACKWARD = (ReferenceAlgorithm("window", _backward),)
BACKWARD_INDICES = (ReferenceAlgorithm("window", _backward_indices),)
