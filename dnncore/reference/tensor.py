"""Adding, summing and multiplying tensors."""

from __future__ import annotations

import numpy as np

from dnncore.problems import AddProblem, MatmulProblem, SumProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["ADD", "MATMUL", "SUM"]


def _add(problem: AddProblem, a: Array) -> Array:
    return np.broadcast_to(a, problem.c.shape)


def _sum(problem: SumProblem, x: Array) -> Array:
    axes = tuple(axis for axis, extent in enumerate(problem.y.shape) if extent == 1)
    return x.sum(axes, keepdims=True) if axes else x


def _matmul(_problem: MatmulProblem, a: Array, b: Array) -> Array:
    return a @ b


ADD = (ReferenceAlgorithm("broadcast", _add),)
SUM = (ReferenceAlgorithm("axes", _sum),)
MATMUL = (ReferenceAlgorithm("blas", _matmul),)
