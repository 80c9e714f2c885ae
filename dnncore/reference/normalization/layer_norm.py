"""Layer and RMS normalisation."""

from __future__ import annotations

from dnncore.problems import LayerNormBackwardProblem, LayerNormForwardProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm
from dnncore.reference.normalization.statistics import gradient, named, normalize, parameter_gradients

__all__ = ["BACKWARD", "FORWARD"]


def _forward(problem: LayerNormForwardProblem, *arrays: Array) -> tuple[Array, ...]:
    given = named(problem, arrays)
    axes, centred = tuple(range(problem.axis, problem.x.ndim)), problem.saved_mean is not None
    normalized, mean, inv_std, _ = normalize(given["x"], axes, problem.epsilon, centred=centred)
    y = normalized * given.get("scale", 1.0) + given.get("bias", 0.0)
    return (y, mean, inv_std) if centred else (y, inv_std)


def _backward(problem: LayerNormBackwardProblem, *arrays: Array) -> tuple[Array, ...]:
    given = named(problem, arrays)
    dy, inv_std = given["dy"], given["saved_inv_std"]
    axes, centred = tuple(range(problem.axis, problem.x.ndim)), problem.saved_mean is not None
    normalized = (given["x"] - given.get("saved_mean", 0.0)) * inv_std
    factors = problem.parameter_alpha, problem.parameter_beta
    shared = tuple(range(problem.axis))
    return (
        gradient(normalized, dy * given.get("scale", 1.0), inv_std, axes, centred=centred),
        *parameter_gradients(normalized, dy, shared, factors, given, problem.output_names[1:]),
    )


FORWARD = (ReferenceAlgorithm("two_passes", _forward),)
BACKWARD = (ReferenceAlgorithm("two_passes", _backward),)
