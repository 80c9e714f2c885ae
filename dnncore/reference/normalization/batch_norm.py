"""Batch normalisation."""

from __future__ import annotations

import numpy as np

from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem, BatchNormInferenceProblem
from dnncore.problems.normalization.batch_norm import batch_norm_axes
from dnncore.reference.launch import Array, exact_and_fast, in_parts
from dnncore.reference.normalization.statistics import gradient, named, normalize, parameter_gradients

__all__ = ["BACKWARD", "FORWARD", "INFERENCE"]


def _inference(
    problem: BatchNormInferenceProblem, x: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> Array:
    y: Array = x - mean
    y *= scale / np.sqrt(variance + problem.epsilon)
    y += bias
    return y


def _forward(problem: BatchNormForwardProblem, *arrays: Array) -> tuple[Array, ...]:
    given = named(problem, arrays)
    x, axes = given["x"], batch_norm_axes(problem.x, problem.mode)
    normalized, mean, inv_std, variance = normalize(x, axes, problem.epsilon)
    y = given["scale"] * normalized + given["bias"]
    if problem.activation is not None:
        y = np.maximum(y + given.get("z", 0.0), 0.0)
    outputs = [y, mean, inv_std]
    if problem.running_mean is not None and not x.size:
        outputs += [given["running_mean"], given["running_variance"]]
    elif problem.running_mean is not None:
        length, fresh = problem.length, problem.momentum
        unbiased = variance * (length / (length - 1))
        outputs += [
            (1 - fresh) * given["running_mean"] + fresh * mean,
            (1 - fresh) * given["running_variance"] + fresh * unbiased,
        ]
    return tuple(outputs)


def _backward(problem: BatchNormBackwardProblem, *arrays: Array) -> tuple[Array, ...]:
    given = named(problem, arrays)
    dy, axes = given["dy"], batch_norm_axes(problem.x, problem.mode)
    if problem.activation is not None:
        dy = np.where(given["y"] > 0, dy, 0.0)
    normalized = (given["x"] - given["saved_mean"]) * given["saved_inv_std"]
    factors = problem.parameter_alpha, problem.parameter_beta
    return (
        gradient(normalized, dy * given["scale"], given["saved_inv_std"], axes),
        *parameter_gradients(normalized, dy, axes, factors, given, ("dscale", "dbias")),
        *(() if problem.dz is None else (dy,)),
    )


INFERENCE = exact_and_fast("given", _inference, in_parts(_inference, 1))
FORWARD = exact_and_fast("two_passes", _forward, in_parts(_forward, 1))
BACKWARD = exact_and_fast("two_passes", _backward, in_parts(_backward, 1))
