"""A case: a problem with a readable name and the blending to test it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import Problem

__all__ = ["Case", "describe"]


@dataclass(frozen=True)
class Case:
    """A problem to be solved by every algorithm that supports it.

    Args:
        written_for: Algorithms whose corners it explores, by name; the emulator, where time is dear, runs it by these alone.
    """

    name: str
    problem: Problem
    alpha: float = 1.0
    beta: float = 0.0
    written_for: tuple[str, ...] = ()


def describe(shape: Sequence[int], dtype: DType, layout: str) -> TensorDescriptor:
    """A descriptor in a layout, or with `gaps`: rows padded by 3 elements and every other element used."""
    if layout in Layout.__members__:
        return TensorDescriptor.packed(shape, dtype, layout)
    assert layout == "gaps", layout
    strides, step = [0] * len(shape), 2
    for axis in reversed(range(len(shape))):
        strides[axis] = step
        step = step * max(shape[axis], 1) + 3
    return TensorDescriptor(dtype, tuple(shape), tuple(strides))
