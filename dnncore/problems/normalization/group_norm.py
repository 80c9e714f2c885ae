"""Group normalisation, and with as many groups as channels instance normalisation.

Scale and bias are [1, C, 1, ...], statistics [N, G, 1, ...], both with as many dimensions as x. Statistics are in its compute type
(float32, float64 for float64), each of scale, bias and their gradients in that or in the dtype of x. Group g has the channels from
g C/G on.
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
from dnncore.problems.problem import at_least_2d

__all__ = ["GroupNormBackwardProblem", "GroupNormForwardProblem"]


def _check(problem: GroupNormForwardProblem | GroupNormBackwardProblem) -> None:
    settle(problem, groups=whole(problem.groups, "groups"))
    x, groups = problem.x, problem.groups
    at_least_2d(x=x)
    if groups < 1 or x.shape[1] % groups:
        raise BadParamError(f"{groups} groups do not divide the channels of x {x.shape}")
    rest = (1,) * (x.ndim - 2)
    operands_fit(problem, f"{groups} groups of x", (1, x.shape[1], *rest), (x.shape[0], groups, *rest))
    has_elements(x, tuple(range(1, x.ndim)), "in a group")


@dataclass(frozen=True, slots=True)
class GroupNormForwardProblem(OptionalOperands):
    """y = scale * (x - m) / sqrt(v + epsilon) + bias, m and v taken over a group's channels and places; y may be x.

    saved_mean and saved_inv_std = 1 / sqrt(v + epsilon) are for the backward operation.
    """

    x: TensorDescriptor
    y: TensorDescriptor
    saved_mean: TensorDescriptor
    saved_inv_std: TensorDescriptor
    groups: int
    epsilon: float
    scale: TensorDescriptor | None = None
    bias: TensorDescriptor | None = None
    possible_inputs: ClassVar[tuple[str, ...]] = ("x", "scale", "bias")
    possible_outputs: ClassVar[tuple[str, ...]] = ("y", "saved_mean", "saved_inv_std")
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("x", "y")})

    def __post_init__(self) -> None:
        _check(self)
        is_epsilon(self.epsilon)


@dataclass(frozen=True, slots=True)
class GroupNormBackwardProblem(NormalizationGradients):
    """dx, and dscale and dbias where they are asked for, from (x, dy) and what the forward operation saved; dx may be dy.

    dx is blended by alpha and beta; parameters' gradients by parameter_alpha and parameter_beta, as of batch normalisation.
    """

    x: TensorDescriptor
    dy: TensorDescriptor
    saved_mean: TensorDescriptor
    saved_inv_std: TensorDescriptor
    dx: TensorDescriptor
    groups: int
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
