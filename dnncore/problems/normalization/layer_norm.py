"""Layer normalisation over the last dimensions; RMS normalisation takes the mean to be 0.

Scale and bias are [1, ..., 1, *x.shape[axis:]], statistics [*x.shape[:axis], 1, ..., 1], both with as many dimensions as x.
Statistics are in its compute type (float32, float64 for float64), each of scale, bias and their gradients in that or in the dtype
of x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import settle, whole
from dnncore.errors import BadParamError
from dnncore.problems.normalization.operands import (
    NormalizationGradients,
    OptionalOperands,
    has_elements,
    is_epsilon,
    operands_fit,
)

__all__ = ["LayerNormBackwardProblem", "LayerNormForwardProblem"]


def _check(problem: LayerNormForwardProblem | LayerNormBackwardProblem) -> None:
    settle(problem, axis=whole(problem.axis, "axis"))
    x, axis = problem.x, problem.axis
    if not 0 <= axis < x.ndim:
        raise BadParamError(f"axis {axis} is none of x {x.shape}; it must be between 0 and {x.ndim - 1}")
    parameters, statistics = (*(1,) * axis, *x.shape[axis:]), (*x.shape[:axis], *(1,) * (x.ndim - axis))
    operands_fit(problem, f"axis {axis} of x", parameters, statistics)
    has_elements(x, tuple(range(axis, x.ndim)), "for a mean")


@dataclass(frozen=True, slots=True)
class LayerNormForwardProblem(OptionalOperands):
    """y = scale * (x - m) / sqrt(v + epsilon) + bias, m and v taken over dimensions axis, axis + 1, ... of x; y may be x.

    Without saved_mean, m is 0 and v the mean of x^2 (RMS normalisation). saved_inv_std is 1 / sqrt(v + epsilon).
    """

    x: TensorDescriptor
    y: TensorDescriptor
    saved_inv_std: TensorDescriptor
    axis: int
    epsilon: float
    saved_mean: TensorDescriptor | None = None
    scale: TensorDescriptor | None = None
    bias: TensorDescriptor | None = None
    possible_inputs: ClassVar[tuple[str, ...]] = ("x", "scale", "bias")
    possible_outputs: ClassVar[tuple[str, ...]] = ("y", "saved_mean", "saved_inv_std")
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("x", "y")})

    def __post_init__(self) -> None:
        _check(self)
        is_epsilon(self.epsilon)


@dataclass(frozen=True, slots=True)
class LayerNormBackwardProblem(NormalizationGradients):
    """dx, and dscale and dbias where they are asked for, from (x, dy) and what the forward operation saved; dx may be dy.

    dx is blended by alpha and beta; parameters' gradients by parameter_alpha and parameter_beta, as of batch normalisation.
    """

    x: TensorDescriptor
    dy: TensorDescriptor
    saved_inv_std: TensorDescriptor
    dx: TensorDescriptor
    axis: int
    saved_mean: TensorDescriptor | None = None
    scale: TensorDescriptor | None = None
    dscale: TensorDescriptor | None = None
    dbias: TensorDescriptor | None = None
    parameter_alpha: float = 1.0
    parameter_beta: float = 0.0
    old_dscale: TensorDescriptor | None = None
    old_dbias: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        _check(self)
        self.check_blend()
