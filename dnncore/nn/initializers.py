"""What constants hold before anybody has trained: equal seeds give equal bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

__all__ = ["Filled", "Initializer", "Normal", "Uniform", "Zeros", "he_normal", "xavier_uniform"]


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
    """Normally distributed with mean 0.

    Args:
        variance: Of the distribution.
    """

    variance: float

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Normal deviates."""
        deviates: np.ndarray = generator.standard_normal(shape) * np.sqrt(self.variance)
        return deviates.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Between -limit and limit."""

    limit: float

    def fill(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform deviates."""
        return generator.uniform(-self.limit, self.limit, shape).astype(np.float32)


def he_normal(fan_in: int) -> Normal:
    """For weights before a rectifier: variance 2 / fan_in (He et al., arXiv 1502.01852, equation 10).

    Args:
        fan_in: Inputs that one output sums over.
    """
    return Normal(2 / fan_in)


def xavier_uniform(fan_in: int) -> Uniform:
    """Uniform with variance 1 / fan_in, as Caffe's filler "xavier" (after Glorot and Bengio, AISTATS 2010)."""
    return Uniform(math.sqrt(3 / fan_in))
