"""Backward-filter convolution of 16 bits whose dw is in float32, over copies of x and dy in float32: what computes any of them.

Kernels that add up parts in float32 store such a dw as it is; this is for where there is none, and for odd addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dnncore.backend import Bounded, Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convolution.copies import copying_seconds, with_copies
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.formats import like
from dnncore.problems import ConvolutionProblem

__all__ = ["Widened", "is_wide", "narrowed"]


def is_wide(problem: ConvolutionProblem) -> bool:
    """Whether dw has the compute type of 16-bit operands."""
    return problem.w.dtype is DType.FLOAT32 and problem.x.dtype is not DType.FLOAT32 and problem.x.dtype.is_floating


def narrowed(problem: ConvolutionProblem) -> ConvolutionProblem:
    """The same with a dw of the operands' dtype."""
    return replace(problem, w=problem.w.with_dtype(problem.x.dtype)) if is_wide(problem) else problem


@dataclass(frozen=True)
class Widened(Bounded):
    """A backward-filter convolution in float32 of what is in 16 bits. Immutable.

    Args:
        name: See `backend.Algorithm`.
        algorithms: What computes that; the last of them supports everything that is legal.
    """

    name: str
    algorithms: Callable[[], Sequence[CudaAlgorithm]]

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of transforms and of the algorithms."""
        return ()

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What the copies take at least."""
        return copying_seconds(_copies(problem).values(), figures) if is_wide(problem) else math.inf

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What the copies and the fastest of the algorithms take together."""
        return _offer(self.algorithms, problem, figures)


@lru_cache(maxsize=64)
def _offer(
    algorithms: Callable[[], Sequence[CudaAlgorithm]], problem: ConvolutionProblem, figures: DeviceFigures
) -> Offer | str:
    if not is_wide(problem):
        return f"x is {problem.x.dtype.value}, dw {problem.w.dtype.value}; it is for 16 bits and float32"
    copies = _copies(problem)
    return with_copies(problem, copies, copies, algorithms(), figures)


def _copies(problem: ConvolutionProblem) -> dict[str, TensorDescriptor]:
    """x and dy as they lie, but for gaps in which copies have none."""
    return {name: like(getattr(problem, name)).with_dtype(DType.FLOAT32) for name in ("x", "y")}
