"""Adding, summing and multiplying tensors."""

from __future__ import annotations

import math

from dnncore.problems import AddProblem, MatmulProblem, SumProblem
from tests.ops.oracle.answer import Tensor, Terms, answers

__all__: list[str] = []


@answers.register
def _(problem: AddProblem, a: Tensor) -> Terms:
    value = a.expand(problem.c.shape)
    return value, value.abs(), 1


@answers.register
def _(problem: SumProblem, x: Tensor) -> Terms:
    axes = [axis for axis, extent in enumerate(problem.y.shape) if extent == 1]
    length = max(math.prod(problem.x.shape[axis] for axis in axes), 1)
    return (x.sum(axes, keepdim=True), x.abs().sum(axes, keepdim=True), length) if axes else (x, x.abs(), 1)


@answers.register
def _(problem: MatmulProblem, a: Tensor, b: Tensor) -> Terms:
    return a @ b, a.abs() @ b.abs(), max(problem.a.shape[1], 1)
