"""Group normalisation: a group's channels become a dimension of their own."""

from __future__ import annotations

from dnncore.problems import GroupNormBackwardProblem, GroupNormForwardProblem
from dnncore.reference.launch import Array, ReferenceAlgorithm
from dnncore.reference.normalization.statistics import gradient, named, normalize, parameter_gradients

__all__ = ["BACKWARD", "FORWARD"]


def _grouped(array: Array, groups: int) -> Array:
    """[N, C, *spatial] as [N, G, C/G, *spatial], and statistics [N, G, 1, ...] as [N, G, 1, 1, ...]."""
    n, c, *spatial = array.shape
    return array.reshape(n, groups, c // groups, *spatial)


def _forward(problem: GroupNormForwardProblem, *arrays: Array) -> tuple[Array, ...]:
    given, x = named(problem, arrays), problem.x
    axes = tuple(range(2, x.ndim + 1))
    normalized, mean, inv_std, _ = normalize(_grouped(given["x"], problem.groups), axes, problem.epsilon)
    y = normalized.reshape(x.shape) * given.get("scale", 1.0) + given.get("bias", 0.0)
    saved = problem.saved_mean.shape
    return y, mean.reshape(saved), inv_std.reshape(saved)


def _backward(problem: GroupNormBackwardProblem, *arrays: Array) -> tuple[Array, ...]:
    given, x = named(problem, arrays), problem.x
    dy = given["dy"]
    grouped, mean, inv_std, weighted = (
        _grouped(array, problem.groups)
        for array in (given["x"], given["saved_mean"], given["saved_inv_std"], dy * given.get("scale", 1.0))
    )
    normalized = (grouped - mean) * inv_std
    factors = problem.parameter_alpha, problem.parameter_beta
    shared = (0, *range(2, x.ndim))
    return (
        gradient(normalized, weighted, inv_std, tuple(range(2, x.ndim + 1))).reshape(x.shape),
        *parameter_gradients(normalized.reshape(x.shape), dy, shared, factors, given, problem.output_names[1:]),
    )


FORWARD = (ReferenceAlgorithm("two_passes", _forward),)
BACKWARD = (ReferenceAlgorithm("two_passes", _backward),)
