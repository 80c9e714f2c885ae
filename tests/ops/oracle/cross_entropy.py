"""Cross-entropy of logits; classes from -1 to K, so that some are none, or probabilities that do not add up to 1."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from dnncore.dtypes import DType
from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs

__all__: list[str] = []

Problem = CrossEntropyForwardProblem | CrossEntropyBackwardProblem
_NO_CLASS = -100


@draw_inputs.register(CrossEntropyForwardProblem)
@draw_inputs.register(CrossEntropyBackwardProblem)
def _(problem: Problem, rng: np.random.Generator) -> list[np.ndarray]:
    rows, classes = problem.x.shape
    if problem.labels.dtype is DType.INT32:
        labels = rng.integers(-1, classes + 1, rows).astype(np.int32)
    else:
        weights = rng.uniform(0, 2 / max(classes, 1), problem.x.shape) * (rng.uniform(size=problem.x.shape) > 0.25)
        labels = weights.astype(problem.labels.dtype.numpy)
    return [draw(problem.x, rng), labels]


def _cross_entropy(problem: Problem, x: Tensor, labels: Tensor) -> Tensor:
    settings = problem.cross_entropy
    if labels.ndim == 1:
        known = (labels >= 0) & (labels < x.shape[1])
        if settings.ignore_index is not None:
            known &= labels != settings.ignore_index
        labels = torch.where(known, labels, _NO_CLASS)
    return F.cross_entropy(
        x, labels, reduction="none", ignore_index=_NO_CLASS, label_smoothing=settings.label_smoothing
    )


def _weight(labels: Tensor) -> Tensor:
    """How much each row counts, [N]."""
    return labels.abs().sum(1) if labels.ndim == 2 else torch.ones(len(labels))


@answers.register
def _(problem: CrossEntropyForwardProblem, x: Tensor, labels: Tensor) -> Terms:
    value = _cross_entropy(problem, x, labels)
    return value, value.abs() + 4.0 * (1 + _weight(labels)), x.shape[1]


@answers.register
def _(problem: CrossEntropyBackwardProblem, x: Tensor, labels: Tensor) -> Terms:
    leaf = x.clone().requires_grad_()
    (value,) = torch.autograd.grad(_cross_entropy(problem, leaf, labels).sum(), leaf)
    return value, torch.ones_like(value) * (1 + _weight(labels))[:, None], x.shape[1]
