"""Batch normalisation: with given statistics, with those of the batch, and backward.

Parameters and statistics are in the compute type of x (float32, float64 for float64), of shape [1, C, 1, ...] or, per activation,
[1, C, *spatial]: what cuDNN's cudnnDeriveBNTensorDescriptor gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import BatchNormMode, TensorDescriptor
from dnncore.descriptors.settings import member, number, settle
from dnncore.errors import BadParamError
from dnncore.problems.normalization.operands import (
    OptionalOperands,
    blends_parameters,
    has_elements,
    has_shape,
    is_epsilon,
    together,
)
from dnncore.problems.problem import Operands, at_least_2d, same_dtype, same_shape, writable

__all__ = [
    "BatchNormBackwardProblem",
    "BatchNormForwardProblem",
    "BatchNormInferenceProblem",
    "batch_norm_axes",
    "batch_norm_parameters",
]


def batch_norm_axes(x: TensorDescriptor, mode: BatchNormMode) -> tuple[int, ...]:
    """Dimensions of x that a statistic is taken over."""
    return (0,) if mode is BatchNormMode.PER_ACTIVATION else (0, *range(2, x.ndim))


def batch_norm_parameters(x: TensorDescriptor, mode: BatchNormMode) -> tuple[int, ...]:
    """Shape of scale, bias and statistics."""
    axes = batch_norm_axes(x, mode)
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))


def _parameters(x: TensorDescriptor, mode: BatchNormMode, **tensors: TensorDescriptor | None) -> None:
    why = f"mode {mode.value} of x {x.dtype.value}{list(x.shape)}"
    has_shape(batch_norm_parameters(x, mode), x.dtype.compute, why, **tensors)


@dataclass(frozen=True, slots=True)
class BatchNormInferenceProblem(Operands):
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias of x [N, C, *spatial]; y may be x."""

    x: TensorDescriptor
    scale: TensorDescriptor
    bias: TensorDescriptor
    mean: TensorDescriptor
    variance: TensorDescriptor
    y: TensorDescriptor
    mode: BatchNormMode
    epsilon: float
    input_names: ClassVar[tuple[str, ...]] = ("x", "scale", "bias", "mean", "variance")
    output_names: ClassVar[tuple[str, ...]] = ("y",)
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("x", "y")})

    def __post_init__(self) -> None:
        settle(self, mode=member(BatchNormMode, self.mode))
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        at_least_2d(x=self.x)
        _parameters(self.x, self.mode, scale=self.scale, bias=self.bias, mean=self.mean, variance=self.variance)
        is_epsilon(self.epsilon)
        writable(y=self.y)


@dataclass(frozen=True, slots=True)
class BatchNormForwardProblem(OptionalOperands):
    """y = scale * (x - m) / sqrt(v + epsilon) + bias with mean m and variance v of the batch; y may be x.

    saved_mean and saved_inv_std = 1 / sqrt(v + epsilon) are for the backward operation; v is the biased variance. With running
    statistics, new = (1 - momentum) * old + momentum * batch, where the batch's variance is the unbiased one; old and new may be
    the same memory. An x without elements is refused, and with running statistics one that has a single element for a mean.
    """

    x: TensorDescriptor
    scale: TensorDescriptor
    bias: TensorDescriptor
    y: TensorDescriptor
    saved_mean: TensorDescriptor
    saved_inv_std: TensorDescriptor
    mode: BatchNormMode
    epsilon: float
    momentum: float = 0.0
    running_mean: TensorDescriptor | None = None
    running_variance: TensorDescriptor | None = None
    new_running_mean: TensorDescriptor | None = None
    new_running_variance: TensorDescriptor | None = None
    possible_inputs: ClassVar[tuple[str, ...]] = ("x", "scale", "bias", "running_mean", "running_variance")
    possible_outputs: ClassVar[tuple[str, ...]] = (
        "y",
        "saved_mean",
        "saved_inv_std",
        "new_running_mean",
        "new_running_variance",
    )
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset(
        {("x", "y"), ("running_mean", "new_running_mean"), ("running_variance", "new_running_variance")}
    )

    def __post_init__(self) -> None:
        settle(self, mode=member(BatchNormMode, self.mode))
        same_dtype(x=self.x, y=self.y)
        same_shape(x=self.x, y=self.y)
        at_least_2d(x=self.x)
        running = {
            "running_mean": self.running_mean,
            "running_variance": self.running_variance,
            "new_running_mean": self.new_running_mean,
            "new_running_variance": self.new_running_variance,
        }
        together(**running)
        _parameters(
            self.x,
            self.mode,
            scale=self.scale,
            bias=self.bias,
            saved_mean=self.saved_mean,
            saved_inv_std=self.saved_inv_std,
            **running,
        )
        is_epsilon(self.epsilon)
        has_elements(self.x, batch_norm_axes(self.x, self.mode), "for a mean")
        if not 0 <= number(self.momentum, "momentum") <= 1:
            raise BadParamError(f"momentum {self.momentum} must be between 0 and 1")
        if self.running_mean is not None and self.length == 1 and self.x.size:
            raise BadParamError(
                f"x has shape {self.x.shape}: one element for a mean has no unbiased variance; leave the running statistics out"
            )
        writable(**{name: getattr(self, name) for name in self.output_names})

    @property
    def length(self) -> int:
        """Elements that a mean is taken over."""
        return math.prod(self.x.shape[axis] for axis in batch_norm_axes(self.x, self.mode))


@dataclass(frozen=True, slots=True)
class BatchNormBackwardProblem(OptionalOperands):
    """dx, dscale and dbias from (x, dy, scale) and what the forward operation saved; dx may be dy.

    dx is blended by alpha and beta, like every first output. dscale = parameter_alpha * gradient + parameter_beta * old_dscale,
    and dbias likewise; old_dscale and old_dbias are given if and only if parameter_beta is not 0, and may be the memory of dscale
    and dbias.
    """

    x: TensorDescriptor
    dy: TensorDescriptor
    scale: TensorDescriptor
    saved_mean: TensorDescriptor
    saved_inv_std: TensorDescriptor
    dx: TensorDescriptor
    dscale: TensorDescriptor
    dbias: TensorDescriptor
    mode: BatchNormMode
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
            mode=member(BatchNormMode, self.mode),
            parameter_alpha=number(self.parameter_alpha, "parameter_alpha"),
            parameter_beta=number(self.parameter_beta, "parameter_beta"),
        )
        same_dtype(x=self.x, dy=self.dy, dx=self.dx)
        same_shape(x=self.x, dy=self.dy, dx=self.dx)
        at_least_2d(x=self.x)
        _parameters(
            self.x,
            self.mode,
            scale=self.scale,
            saved_mean=self.saved_mean,
            saved_inv_std=self.saved_inv_std,
            dscale=self.dscale,
            dbias=self.dbias,
            old_dscale=self.old_dscale,
            old_dbias=self.old_dbias,
        )
        has_elements(self.x, batch_norm_axes(self.x, self.mode), "for a mean")
        blends_parameters(
            self.parameter_beta, dscale=(self.dscale, self.old_dscale), dbias=(self.dbias, self.old_dbias)
        )
        writable(dx=self.dx, dscale=self.dscale, dbias=self.dbias)
