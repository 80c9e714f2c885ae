"""Answers, drawn inputs, and the two functions that every family registers its problems with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import Problem

__all__ = ["Answer", "Tensor", "Terms", "answers", "draw", "draw_inputs", "from_numpy", "make_inputs", "solve"]

Tensor = Any  # torch ships no complete type information for what is used here

Terms = tuple[Tensor, Tensor, int]
"""An output's value, the sum of the absolute values that went into each element, and how many they were."""


@dataclass(frozen=True)
class Answer:
    value: np.ndarray
    magnitude: np.ndarray
    length: int


def make_inputs(problem: Problem, rng: np.random.Generator) -> list[np.ndarray]:
    """Random inputs in the problem's dtypes; what a forward pass would have written is computed from the x drawn."""
    return draw_inputs(problem, rng)


def solve(problem: Problem, inputs: list[np.ndarray]) -> tuple[Answer, ...]:
    """One answer an output."""
    found = answers(problem, *map(from_numpy, inputs))
    several = found if isinstance(found, list) else [found]
    return tuple(Answer(v.detach().numpy(), m.detach().numpy(), length) for v, m, length in several)


@singledispatch
def answers(problem: Any, *inputs: Tensor) -> Terms | list[Terms]:
    """The answer of a kind of problem, or a list of one per output; inputs are float64, labels and indices int64."""
    raise NotImplementedError(type(problem))


@singledispatch
def draw_inputs(problem: Any, rng: np.random.Generator) -> list[np.ndarray]:
    """Random inputs of a kind of problem; without a registration, distinct values for each."""
    return [draw(descriptor, rng) for descriptor in problem.inputs]


def from_numpy(array: np.ndarray) -> Tensor:
    """float64, or int64 for int32."""
    return torch.tensor(array.astype(np.int64 if array.dtype == np.int32 else np.float64))


def draw(descriptor: TensorDescriptor, rng: np.random.Generator) -> np.ndarray:
    """Values in [-2, 2], none near zero, in random order, as distinct as the dtype allows; 8 bits in their whole range.

    Along dimensions of stride 0 there is one value.
    """
    base = tuple(1 if stride == 0 else e for e, stride in zip(descriptor.shape, descriptor.strides, strict=True))
    size = math.prod(base)
    if descriptor.dtype is DType.BOOL:
        values = rng.integers(0, 2, size).astype(np.float64)
    elif descriptor.dtype in (DType.INT8, DType.UINT8):
        limits = np.iinfo(descriptor.dtype.numpy)
        values = rng.integers(limits.min, limits.max + 1, size).astype(np.float64)
    else:
        values = (np.arange(size) + 0.5 + rng.uniform(-0.2, 0.2, size)) / max(size, 1) * 4 - 2
        values = rng.permutation(np.where(np.abs(values) < 1e-3, 1e-3, values))
    return np.broadcast_to(values.reshape(base).astype(descriptor.dtype.numpy), descriptor.shape)
