"""Cross-entropy of logits with integer labels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["BACKWARD", "FORWARD"]


def _log_softmax(x: Array) -> Array:
    largest: Array = x.max(1, keepdims=True)
    shifted = x - largest
    total: Array = np.exp(shifted).sum(1, keepdims=True)
    return shifted - np.log(total)


def _forward(problem: CrossEntropyForwardProblem, x: Array, labels: npt.NDArray[np.int32]) -> Array:
    loss = np.zeros(problem.loss.shape)
    (rows,) = np.nonzero((labels >= 0) & (labels < x.shape[1]))
    if rows.size:
        loss[rows] = -_log_softmax(x[rows])[np.arange(rows.size), labels[rows]]
    return loss


def _backward(problem: CrossEntropyBackwardProblem, x: Array, labels: npt.NDArray[np.int32]) -> Array:
    dx = np.zeros(problem.dx.shape)
    (rows,) = np.nonzero((labels >= 0) & (labels < x.shape[1]))
    if rows.size:
        dx[rows] = np.exp(_log_softmax(x[rows]))
        dx[rows, labels[rows]] -= 1
    return dx


FORWARD = (ReferenceAlgorithm("rows", _forward),)
BACKWARD = (ReferenceAlgorithm("rows", _backward),)
