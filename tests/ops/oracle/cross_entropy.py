"""Cross-entropy of logits; labels from -1 to K, so that some are no class."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs

__all__: list[str] = []


@draw_inputs.register(CrossEntropyForwardProblem)
@draw_inputs.register(CrossEntropyBackwardProblem)
def _(problem: CrossEntropyForwardProblem | CrossEntropyBackwardProblem, rng: np.random.Generator) -> list[np.ndarray]:
    rows, classes = problem.x.shape
    return [draw(problem.x, rng), rng.integers(-1, classes + 1, rows).astype(np.int32)]


def _cross_entropy(x: Tensor, labels: Tensor) -> Tensor:
    known = (labels >= 0) & (labels < x.shape[1])
    loss = F.cross_entropy(x, torch.where(known, labels, 0), reduction="none")
    return torch.where(known, loss, 0.0)


@answers.register
def _(problem: CrossEntropyForwardProblem, x: Tensor, labels: Tensor) -> Terms:
    value = _cross_entropy(x, labels)
    return value, value.abs() + 4.0, x.shape[1]


@answers.register
def _(problem: CrossEntropyBackwardProblem, x: Tensor, labels: Tensor) -> Terms:
    leaf = x.clone().requires_grad_()
    (value,) = torch.autograd.grad(_cross_entropy(leaf, labels).sum(), leaf)
    return value, torch.ones_like(value), x.shape[1]
