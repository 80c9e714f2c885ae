"""What batch, layer and group normalisation share: statistics over some axes, and the gradient that goes back through them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dnncore.problems.normalization.operands import OptionalOperands
from dnncore.reference.launch import Array

__all__ = ["gradient", "named", "normalize", "parameter_gradients"]

Axes = tuple[int, ...]


def named(problem: OptionalOperands, arrays: tuple[Array, ...]) -> dict[str, Array]:
    """A problem's inputs by name."""
    return dict(zip(problem.input_names, arrays, strict=True))


def normalize(x: Array, axes: Axes, epsilon: float, *, centred: bool = True) -> tuple[Array, Array, Array, Array]:
    """(x - mean) * inv_std, mean, inv_std, and the variance; a mean of 0 where x is not centred.

    Of groups without elements the mean is 0 and the variance 0 / 0.
    """
    if not x.size:
        mean = np.zeros([1 if axis in axes else extent for axis, extent in enumerate(x.shape)])
        return x, mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    mean = x.mean(axes, keepdims=True)
    if centred:  # a long sum of large numbers is off by more than its last bits; what it leaves over says by how much
        left: Array = (x - mean).mean(axes, keepdims=True)
        mean = mean + left
    else:
        mean = np.zeros_like(mean)
    distance = x - mean
    variance: Array = np.square(distance).mean(axes, keepdims=True)
    inv_std: Array = 1 / np.sqrt(variance + epsilon)
    return distance * inv_std, mean, inv_std, variance


def gradient(normalized: Array, weighted: Array, inv_std: Array, axes: Axes, *, centred: bool = True) -> Array:
    """dx where `weighted` is dy times scale."""
    if not normalized.size:
        return normalized
    along: Array = (weighted * normalized).mean(axes, keepdims=True)
    result: Array = weighted - normalized * along
    if centred:
        mean: Array = weighted.mean(axes, keepdims=True)
        result = result - mean
    return inv_std * result


def parameter_gradients(
    normalized: Array,
    dy: Array,
    axes: Axes,
    factors: tuple[float, float],
    old: dict[str, Array],
    names: tuple[str, ...],
) -> Iterator[Array]:
    """Blended gradients of the parameters named, "dscale" and "dbias", that are shared along the axes."""
    for name in names:
        found: Array = (dy * normalized if name == "dscale" else dy).sum(axes, keepdims=True)
        found = factors[0] * found
        before = old.get(f"old_{name}")
        yield found if before is None else found + factors[1] * before
