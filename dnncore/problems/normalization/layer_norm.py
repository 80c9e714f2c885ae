"""Layer normalisation over the last dimensions, and with a mean of 0 for granted (RMS normalisation).

Scale and bias are [1, ..., 1, *x.shape[axis:]], statistics [*x.shape[:axis], 1, ..., 1], both with as many dimensions as x and in
its compute type (float32, float64 for float64).
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
from dnncore.problems.problem import same_dtype, same_shape, writable

__all__ = ["LayerNormBackwardProblem", "LayerNormForwardProblem"]


def _parameters(x: TensorDescriptor, axis: int, **tensors: TensorDescriptor | None) -> None:
    why = f"axis {axis} of x {x.dtype.value}{list(x.shape)}"
    has_shape((*(1,) * axis, *x.shape[axis:]), x.dtype.compute, why, **tensors)


def _statistics(x: TensorDescriptor, axis: int, **tensors: TensorDescriptor | None) -> None:
    if not 0 <= axis < x.ndim:
        raise BadParamError(f"axis {axis} is none of x {x.shape}; it must be between 0 and {x.ndim - 1}")
    why = f"axis {axis} of x {x.dtype.value}{list(x.shape)}"
    has_shape((*x.shape[:axis], *(1,) * (x.ndim - axis)), x.dtype.compute, why, **tensors)
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
        settle(self, axis=whole(self.axis, "axis"))
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        _statistics(self.x, self.axis, saved_mean=self.saved_mean, saved_inv_std=self.saved_inv_std)
        _parameters(self.x, self.axis, scale=self.scale, bias=self.bias)
        is_epsilon(self.epsilon)
        writable(**{name: getattr(self, name) for name in self.output_names})


@dataclass(frozen=True, slots=True)
class LayerNormBackwardProblem(OptionalOperands):
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
            axis=whole(self.axis, "axis"),
            parameter_alpha=number(self.parameter_alpha, "parameter_alpha"),
            parameter_beta=number(self.parameter_beta, "parameter_beta"),
        )
        same_dtype(x=self.x, dy=self.dy, dx=self.dx)
        same_shape(x=self.x, dy=self.dy, dx=self.dx)
        _statistics(self.x, self.axis, saved_mean=self.saved_mean, saved_inv_std=self.saved_inv_std)
        gradients = {"dscale": self.dscale, "dbias": self.dbias}
        old = {"old_dscale": self.old_dscale, "old_dbias": self.old_dbias}
        _parameters(self.x, self.axis, scale=self.scale, **gradients, **old)
        blends_parameters(
            self.parameter_beta, dscale=(self.dscale, self.old_dscale), dbias=(self.dbias, self.old_dbias)
        )
        writable(**{name: getattr(self, name) for name in self.output_names})
