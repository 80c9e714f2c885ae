"""Cross-entropy of logits with classes or probabilities as labels."""

from __future__ import annotations

import numpy as np

from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["BACKWARD", "FORWARD"]

CrossEntropyProblem = CrossEntropyForwardProblem | CrossEntropyBackwardProblem


def _log_softmax(x: Array) -> Array:
    largest: Array = x.max(1, keepdims=True)
    shifted = x - largest
    total: Array = np.exp(shifted).sum(1, keepdims=True)
    return shifted - np.log(total)


def _counted(problem: CrossEntropyProblem, x: Array, labels: np.ndarray) -> tuple[np.ndarray, Array]:
    """The rows that have a loss, and their targets [rows, K]."""
    num_rows, num_classes = x.shape
    if labels.ndim == 2:
        rows, targets = np.arange(num_rows), labels.astype(np.float64)
    else:
        (rows,) = np.nonzero((labels >= 0) & (labels < num_classes) & (labels != problem.cross_entropy.ignore_index))
        targets = np.zeros((rows.size, num_classes))
        targets[np.arange(rows.size), labels[rows]] = 1
    smoothing = problem.cross_entropy.label_smoothing
    return rows, (1 - smoothing) * targets + smoothing / max(num_classes, 1)


def _forward(problem: CrossEntropyForwardProblem, x: Array, labels: np.ndarray) -> Array:
    loss = np.zeros(problem.loss.shape)
    rows, targets = _counted(problem, x, labels)
    if targets.size:
        # A class of probability 0 adds nothing, also where its logarithm is infinite.
        loss[rows] = -np.where(targets == 0, 0.0, targets * _log_softmax(x[rows])).sum(1)
    return loss


def _backward(problem: CrossEntropyBackwardProblem, x: Array, labels: np.ndarray) -> Array:
    dx = np.zeros(problem.dx.shape)
    rows, targets = _counted(problem, x, labels)
    if targets.size:
        weight: Array = targets.sum(1, keepdims=True)
        dx[rows] = weight * np.exp(_log_softmax(x[rows])) - targets
    return dx


FORWARD = (ReferenceAlgorithm("rows", _forward),)
BACKWARD = (ReferenceAlgorithm("rows", _backward),)
