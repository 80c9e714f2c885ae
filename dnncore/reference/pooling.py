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
from dnncore.reference.launch import Array, exact_and_fast, in_parts

__all__ = ["BACKWARD", "BACKWARD_INDICES", "FORWARD"]

Indices = npt.NDArray[np.integer]


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

    def _whole(self, padded: Array) -> Array | None:
        """The only window of each plane, [N, C, places], where there is one: NumPy reduces it at once, not place by place."""
        if math.prod(self.y[2:]) != 1:
            return None
        window = padded[:, :, *map(slice, self.pooling.window)]
        return window.reshape(*window.shape[:2], math.prod(self.pooling.window))

    def _frame(self) -> tuple[tuple[int, ...], tuple[slice, ...]]:
        """The shape of an array large enough for every window, and where x lies in it."""
        shape, interior = list(self.x), [slice(None), slice(None)]
        for i, extent in enumerate(self.x[2:]):
            before, after = self.pooling.padding[i]
            reach = (self.y[2 + i] - 1) * self.pooling.stride[i] + self.pooling.window[i]
            shape[2 + i] = max(extent + before + after, reach)
            interior.append(slice(before, before + extent))
        return tuple(shape), tuple(interior)

    def _padded(self, x: Array, fill: float) -> Array:
        """x with `fill` around it; itself where there is nothing around it."""
        shape, interior = self._frame()
        if shape == x.shape:
            return x
        padded = np.full(shape, fill, x.dtype)
        padded[interior] = x
        return padded

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

    def _numbers(self) -> Indices:
        """Under each place of a padded plane, [1, 1, *padded], its place in the plane, in row-major order; -1 in the padding."""
        plane = replace(self, x=(1, 1, *self.x[2:]))
        values = np.arange(math.prod(self.x[2:]), dtype=np.float64).reshape(plane.x)
        return plane._padded(values, -1).astype(np.int64)

    def _candidates(self, x: Array) -> Array:
        return self._padded(x if self.pooling.propagate_nan else np.fmax(x, -np.inf), -np.inf)

    def maximum(self, x: Array) -> Array:
        """The maximum of each window."""
        padded = self._candidates(x)
        if (whole := self._whole(padded)) is not None:
            found: Array = whole.max(2, initial=-np.inf).reshape(self.y)
            return found
        best = np.full(self.y, -np.inf, x.dtype)
        for place in self.places():
            np.maximum(best, padded[place], out=best)
        return best

    def winners(self, x: Array) -> Indices:
        """Which place of each window has its maximum first; of nothing but minus infinity, the first that is in the input."""
        padded, best = self._candidates(x), np.full(self.y, -np.inf, x.dtype)
        has_nan = bool(np.isnan(np.max(padded, initial=-np.inf)))
        winner = np.broadcast_to(self._first_places(), self.y).astype(np.int32)
        for number, place in enumerate(self.places()):
            value = padded[place]
            takes = value > best
            if has_nan:
                takes |= np.isnan(value) & ~np.isnan(best)
            winner[takes] = number
            np.maximum(best, value, out=best)
        return winner

    def _first_places(self) -> Indices:
        """The first place of each window that is in the input, [*output]; one in the padding where there is none."""
        first = np.zeros((), np.int64)
        for i, extent in enumerate(self.pooling.window):
            start = np.arange(self.y[2 + i]) * self.pooling.stride[i] - self.pooling.padding[i][0]
            first = first[..., None] * extent + np.clip(-start, 0, extent - 1)
        return first

    def indices(self, winner: Indices) -> Indices:
        """Places in the plane, in row-major order, from places in the windows; -1 for one in the padding."""
        found, numbers = np.full(self.y, -1), self._numbers()
        for number, place in enumerate(self.places()):
            np.copyto(found, numbers[place], where=winner == number)
        return found

    def winners_of(self, indices: Indices) -> Indices:
        """Places in the windows from places in the plane; -1 for one that is not in its window."""
        winner, numbers = np.full(self.y, -1), self._numbers()
        for number, place in enumerate(self.places()):
            winner[numbers[place] == indices] = number
        return winner

    def average(self, x: Array) -> Array:
        padded = self._padded(x, 0.0)
        if (whole := self._whole(padded)) is not None:
            total: Array = whole.sum(2).reshape(self.y)
        else:
            total = np.zeros(self.y, x.dtype)
            for place in self.places():
                total += padded[place]
        total /= self.divisor().astype(x.dtype)
        return total

    def spread(self, share: Array, winner: Indices | None = None) -> Array:
        """Add a share to every place of its window, or only to that one which wins it."""
        shape, interior = self._frame()
        if winner is None and shape == self.x and self.pooling.window == self.x[2:]:
            return np.broadcast_to(share, shape)
        gradient = np.zeros(shape, share.dtype)
        for number, place in enumerate(self.places()):
            gradient[place] += share if winner is None else np.where(winner == number, share, 0.0)
        return gradient[interior]


def _forward(problem: PoolingForwardProblem, x: Array) -> Array | tuple[Array, ...]:
    windows = _Windows(problem.pooling, x.shape, (*x.shape[:2], *problem.y.shape[2:]))
    if problem.pooling.mode is not PoolingMode.MAX:
        return windows.average(x)
    best = windows.maximum(x)
    return best if problem.indices is None else (best, windows.indices(windows.winners(x)).astype(np.float64))


def _backward(problem: PoolingBackwardProblem, _y: Array, dy: Array, x: Array) -> Array:
    windows = _Windows(problem.pooling, x.shape, dy.shape)
    if problem.pooling.mode is not PoolingMode.MAX:
        return windows.spread(dy / windows.divisor().astype(dy.dtype))
    return windows.spread(dy, windows.winners(x))


def _backward_indices(problem: PoolingBackwardIndicesProblem, dy: Array, indices: npt.NDArray[np.int32]) -> Array:
    windows = _Windows(problem.pooling, (*dy.shape[:2], *problem.dx.shape[2:]), dy.shape)
    return windows.spread(dy, windows.winners_of(indices))


FORWARD = exact_and_fast("window", _forward, in_parts(_forward, 1))
BACKWARD = exact_and_fast("window", _backward, in_parts(_backward, 1))
BACKWARD_INDICES = exact_and_fast("window", _backward_indices, in_parts(_backward_indices, 1))
