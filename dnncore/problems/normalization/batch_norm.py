"""Batch normalisation: with given statistics, with those of the batch, and backward; in training with what customarily follows.

Parameters and statistics are of shape [1, C, 1, ...] or, per activation, [1, C, *spatial]: what cuDNN's
cudnnDeriveBNTensorDescriptor gives. What is saved for the backward operation is in the compute type of x (float32, float64 for
float64). Each of the others, gradients and running statistics among them, is in that or in the dtype of x: it is widened when it is
read, and rounded when it is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import ActivationDescriptor, ActivationMode, BatchNormMode, TensorDescriptor
from dnncore.descriptors.settings import member, number, settle
from dnncore.errors import BadParamError
from dnncore.problems.normalization.operands import (
    NormalizationGradients,
    OptionalOperands,
    is_epsilon,
    operands_fit,
    together,
)
from dnncore.problems.problem import Operands, at_least_2d

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


_RELU = ActivationDescriptor(ActivationMode.RELU)


def _check_activation(activation: ActivationDescriptor | None, **only_with_one: TensorDescriptor | None) -> None:
    """Refuse any activation but ReLU, and operands that belong to one where there is none."""
    if activation not in (None, _RELU):
        raise BadParamError(f"activation is {activation}; batch normalisation can be followed by {_RELU} or by None")
    for name, tensor in only_with_one.items():
        if tensor is not None and activation is None:
            raise BadParamError(f"{name} is {tensor} but there is no activation")


def _check(problem: BatchNormInferenceProblem | BatchNormForwardProblem | BatchNormBackwardProblem) -> None:
    settle(problem, mode=member(BatchNormMode, problem.mode))
    at_least_2d(x=problem.x)
    shape = batch_norm_parameters(problem.x, problem.mode)
    operands_fit(problem, f"mode {problem.mode.value} of x", shape, shape)


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
        _check(self)
        is_epsilon(self.epsilon)


@dataclass(frozen=True, slots=True)
class BatchNormForwardProblem(OptionalOperands):
    """y = activation(scale * (x - m) / sqrt(v + epsilon) + bias + z) with mean m and variance v of the batch; y may be x.

    The activation is ReLU or None, the identity. z is a residual of x's shape and dtype, with an activation only, or None.
    All of it is in the compute type, rounded once; a launch's alpha and beta stay outside.

    saved_mean and saved_inv_std = 1 / sqrt(v + epsilon) are for the backward operation; v is the biased variance. With running
    statistics, new = (1 - momentum) * old + momentum * batch, where the batch's variance is the unbiased one; old and new may be
    the same memory. With them an x that has a single element for a mean is refused. One that has none, an empty batch, leaves them
    as they are, and saves a mean of 0 and an inv_std of NaN, of which nothing comes into its gradients, which are 0.
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
    z: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None
    possible_inputs: ClassVar[tuple[str, ...]] = ("x", "scale", "bias", "z", "running_mean", "running_variance")
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
        together(
            running_mean=self.running_mean,
            running_variance=self.running_variance,
            new_running_mean=self.new_running_mean,
            new_running_variance=self.new_running_variance,
        )
        _check(self)
        _check_activation(self.activation, z=self.z)
        is_epsilon(self.epsilon)
        if not 0 <= number(self.momentum, "momentum") <= 1:
            raise BadParamError(f"momentum {self.momentum} must be between 0 and 1")
        if self.running_mean is not None and self.length == 1 and self.x.size:
            raise BadParamError(
                f"x has shape {self.x.shape}: one element for a mean has no unbiased variance; leave the running statistics out"
            )

    @property
    def length(self) -> int:
        """Elements that a mean is taken over."""
        return math.prod(self.x.shape[axis] for axis in batch_norm_axes(self.x, self.mode))


@dataclass(frozen=True, slots=True)
class BatchNormBackwardProblem(NormalizationGradients):
    """dx, dscale and dbias from (x, dy, scale) and what the forward operation saved; dx may be dy.

    dx is blended by alpha and beta, like every first output. dscale = parameter_alpha * gradient + parameter_beta * old_dscale,
    and dbias likewise; old_dscale and old_dbias are given if and only if parameter_beta is not 0, and may be the memory of dscale
    and dbias.

    With an activation dy is the gradient of what that gave, and all the above is of dy where y > 0, and of 0 elsewhere. y is what
    the forward operation wrote with alpha 1 and beta 0. Where that had no z, its bias may be given as well: then the sign of y
    follows from x too, which is read anyway. dz, the gradient of z, is dy where y > 0; alpha and beta have no part in it.
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
    bias: TensorDescriptor | None = None
    y: TensorDescriptor | None = None
    dz: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None
    possible_inputs: ClassVar[tuple[str, ...]] = (
        *NormalizationGradients.possible_inputs[:5],
        "bias",
        "y",
        *NormalizationGradients.possible_inputs[5:],
    )
    possible_outputs: ClassVar[tuple[str, ...]] = (*NormalizationGradients.possible_outputs, "dz")

    def __post_init__(self) -> None:
        _check(self)
        self.check_blend()
        _check_activation(self.activation, bias=self.bias, y=self.y, dz=self.dz)
        if self.activation is not None and self.y is None:
            raise BadParamError(f"activation is {self.activation} but there is no y, whose sign its gradient goes by")
        if self.bias is not None and self.dz is not None:
            raise BadParamError("bias and dz are both given: with a z the sign of y does not follow from x and bias")
