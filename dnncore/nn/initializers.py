"""What constants hold before anybody has trained: equal seeds give equal bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

__all__ = [
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
        deviates: np.ndarray = generator.standard_normal(shape) * np.sqrt(self.variance)
        return (deviates + self.mean).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Between center - limit and center + limit."""

    limit: float
    center: float = 0.0

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform deviates."""
        return generator.uniform(self.center - self.limit, self.center + self.limit, shape).astype(np.float32)


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
        deviates = generator.standard_normal(shape) * self.deviation + self.mean
        kept = generator.random(shape) < self.nonzero / max(math.prod(shape[1:]), 1)
        return np.where(kept, deviates, 0).astype(np.float32)


@dataclass(frozen=True, slots=True)
class UnitBall(Initializer):
    """Positive weights [K, ...], which add up to 1 for each of the K."""

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform deviates over their sums."""
        deviates = generator.random(shape)
        shares: np.ndarray = deviates / deviates.sum(tuple(range(1, len(shape))), keepdims=True)
        return shares.astype(np.float32)


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


def he_normal(fan_in: int) -> Normal:
    """For weights before a rectifier: variance 2 / fan_in (He et al., arXiv 1502.01852, equation 10).

    Args:
        fan_in: Inputs that one output sums over.
    """
    return Normal(2 / fan_in)


def xavier_uniform(fan_in: int) -> Uniform:
    """Uniform with variance 1 / fan_in, as Caffe's filler "xavier" (after Glorot and Bengio, AISTATS 2010)."""
    return Uniform(math.sqrt(3 / fan_in))
