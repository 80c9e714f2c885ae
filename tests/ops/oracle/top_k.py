"""The largest elements along a dimension, one after the other."""

from __future__ import annotations

import torch

from dnncore.problems import TopKProblem
from tests.ops.oracle.answer import Tensor, Terms, answers

__all__: list[str] = []


@answers.register
def _(problem: TopKProblem, x: Tensor) -> list[Terms]:
    """PyTorch's stable sort; its topk gives equal elements in any order."""
    values, indices = torch.sort(x, dim=problem.axis, descending=True, stable=True)
    count = problem.values.shape[problem.axis]
    values, indices = (one.narrow(problem.axis, 0, count) for one in (values, indices))
    return [(values, values.abs(), 1), (indices.double(), indices.double(), 1)]
