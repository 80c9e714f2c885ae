"""Group normalisation, and with as many groups as channels instance normalisation.

Scale and bias are [1, C, 1, ...], statistics [N, G, 1, ...], both with as many dimensions as x and in its compute type (float32,
float64 for float64). Group g has the channels from g C/G on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import number, settle, whole
from dnncore.errors import BadParamError
from dnncore.problems.normalization.operands import (
    OptionalOperands,
    blends_parameters,
    has_elements,
    has_shape,
    is_epsilon,
)
from dnncore.problems.problem import at_least_2d, same_dtype, same_shape, writable

__all__ = ["GroupNormBackwardProblem", "GroupNormForwardProblem"]


def _validate(
    x: TensorDescriptor,
    groups: int,
    parameters: dict[str, TensorDescriptor | None],
    statistics: dict[str, TensorDescriptor | None],
) -> None:
    if groups < 1 or x.shape[1] % groups:
        raise BadParamError(f"{groups} groups do not divide the channels of x {x.shape}")
    has_elements(x, tuple(range(1, x.ndim)), "in a group")
    rest = (1,) * (x.ndim - 2)
    why = f"{groups} groups of x {x.dtype.value}{list(x.shape)}"
    has_shape((1, x.shape[1], *rest), x.dtype.compute, why, **parameters)
    has_shape((x.shape[0], groups, *rest), x.dtype.compute, why, **statistics)


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
        settle(self, groups=whole(self.groups, "groups"))
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        at_least_2d(x=self.x)
        _validate(
            self.x,
            self.groups,
            {"scale": self.scale, "bias": self.bias},
            {"saved_mean": self.saved_mean, "saved_inv_std": self.saved_inv_std},
        )
        is_epsilon(self.epsilon)
        writable(**{name: getattr(self, name) for name in self.output_names})


@dataclass(frozen=True, slots=True)
class GroupNormBackwardProblem(OptionalOperands):
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
    possible_inputs: ClassVar[tuple[str, ...]] = (
        "x",
        "dy",
        "scale",
        "saved_mean",
        "saved_inv_std",
        "old_dscale",
        "old_dbias",
    )
    possible_outputs: ClassVar[tuple[str, ...]] = ("dx", "dscale", "dbias")
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset(
        {("dy", "dx"), ("old_dscale", "dscale"), ("old_dbias", "dbias")}
    )

    def __post_init__(self) -> None:
        settle(
            self,
            groups=whole(self.groups, "groups"),
            parameter_alpha=number(self.parameter_alpha, "parameter_alpha"),
            parameter_beta=number(self.parameter_beta, "parameter_beta"),
        )
        same_dtype(x=self.x, dy=self.dy, dx=self.dx)
        same_shape(x=self.x, dy=self.dy, dx=self.dx)
        at_least_2d(x=self.x)
        parameters = {"scale": self.scale, "dscale": self.dscale, "dbias": self.dbias}
        old = {"old_dscale": self.old_dscale, "old_dbias": self.old_dbias}
        statistics: dict[str, TensorDescriptor | None] = {
            "saved_mean": self.saved_mean,
            "saved_inv_std": self.saved_inv_std,
        }
        _validate(self.x, self.groups, {**parameters, **old}, statistics)
        blends_parameters(
            self.parameter_beta, dscale=(self.dscale, self.old_dscale), dbias=(self.dbias, self.old_dbias)
        )
        writable(**{name: getattr(self, name) for name in self.output_names})
