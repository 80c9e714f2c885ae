"""What constants hold before anybody has trained: equal seeds give equal bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Averages",
    "Bilinear",
    "Filled",
    "Initializer",
    "Normal",
    "SparseNormal",
    "Uniform",
    "UnitBall",
    "Zeros",
    "he_normal",
    "xavier_uniform",
]


class Initializer(ABC):
    """A way to fill a tensor. Subclasses are frozen dataclasses. Immutable."""

    @abstractmethod
    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """A float32 array of the shape."""


@dataclass(frozen=True, slots=True)
class Zeros(Initializer):
    """Zeros, as biases begin."""

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        """Zeros."""
        return np.zeros(shape, np.float32)


@dataclass(frozen=True, slots=True)
class Filled(Initializer):
    """One value everywhere."""

    value: float

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        """The value."""
        return np.full(shape, self.value, np.float32)


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Normally distributed.

    Args:
        variance: Of the distribution.
        mean: Of the distribution.
    """

    variance: float
    mean: float = 0.0

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Normal deviates."""
        deviation = math.sqrt(self.variance)
        return _in_parts(shape, lambda count: generator.standard_normal(count) * deviation + self.mean)


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Between center - limit and center + limit."""

    limit: float
    center: float = 0.0

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform deviates."""
        low, high = self.center - self.limit, self.center + self.limit
        return _in_parts(shape, lambda count: generator.uniform(low, high, count))


@dataclass(frozen=True, slots=True)
class SparseNormal(Initializer):
    """Normally distributed where it is not 0, for weights [K, ...].

    Args:
        mean: Of what is not 0.
        deviation: Its standard deviation.
        nonzero: How many elements for each of the K are not 0, on average.
    """

    mean: float
    deviation: float
    nonzero: int

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Normal deviates and zeros."""
        deviates = _in_parts(shape, lambda count: generator.standard_normal(count) * self.deviation + self.mean)
        share = self.nonzero / max(math.prod(shape[1:]), 1)
        deviates[_in_parts(shape, generator.random) >= np.float32(share)] = 0
        return deviates


@dataclass(frozen=True, slots=True)
class UnitBall(Initializer):
    """Positive weights [K, ...], which add up to 1 for each of the K."""

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform deviates over their sums."""
        deviates = _in_parts(shape, generator.random)
        deviates /= deviates.sum(tuple(range(1, len(shape))), dtype=np.float64, keepdims=True)
        return deviates


@dataclass(frozen=True, slots=True)
class Bilinear(Initializer):
    """Filters [K, C, R, S] with which a transposed convolution interpolates between neighbours."""

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        """A pyramid, the same for all filters."""
        pyramid = np.ones(())
        for extent in shape[2:]:
            factor = math.ceil(extent / 2)
            center = (2 * factor - 1 - factor % 2) / (2 * factor)
            pyramid = pyramid[..., None] * (1 - np.abs(np.arange(extent) / factor - center))
        return np.broadcast_to(pyramid, shape).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Averages(Initializer):
    """A matrix [target places, source places] that averages windows which cover a source evenly, as adaptive pooling does.

    Window i of n, of an extent e, reaches from floor(i e / n) to ceil((i + 1) e / n).

    Args:
        source: Extents of the places that are read.
        target: How many windows along each.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        """The product of what each dimension has."""
        matrix: np.ndarray = np.ones((1, 1))
        for extent, count in zip(self.source, self.target, strict=True):
            rows = np.zeros((count, extent))
            for window in range(count):
                start, stop = window * extent // count, -(-(window + 1) * extent // count)
                rows[window, start:stop] = 1 / (stop - start)
            matrix = np.kron(matrix, rows)
        return matrix.reshape(shape).astype(np.float32)


_PART = 1 << 20
"""Elements that are made in float64 at a time: large layers take no more memory than their float32."""


def _in_parts(shape: tuple[int, ...], draw: Callable[[int], np.ndarray]) -> np.ndarray:
    """A float32 array of numbers that are drawn one after the other; `draw` gives so many of them."""
    found = np.empty(math.prod(shape), np.float32)
    for start in range(0, found.size, _PART):
        part = found[start : start + _PART]
        part[...] = draw(part.size)
    return found.reshape(shape)


def he_normal(fan_in: int) -> Normal:
    """For weights before a rectifier: variance 2 / fan_in (He et al., arXiv 1502.01852, equation 10).

    Args:
        fan_in: Inputs that one output sums over.
    """
    return Normal(2 / fan_in)


def xavier_uniform(fan_in: int) -> Uniform:
    """Uniform with variance 1 / fan_in, as Caffe's filler "xavier" (after Glorot and Bengio, AISTATS 2010)."""
    return Uniform(math.sqrt(3 / fan_in))
