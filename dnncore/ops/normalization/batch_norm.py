"""Batch normalisation: with given statistics, with those of the batch, and backward."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor, BatchNormMode
from dnncore.descriptors.settings import member, number
from dnncore.handle import Handle
from dnncore.ops.normalization.optional import described, go_back, there
from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem, BatchNormInferenceProblem
from dnncore.tensor import Tensor

__all__ = ["batch_norm_backward", "batch_norm_forward", "batch_norm_inference"]


def batch_norm_inference(
    handle: Handle,
    mode: BatchNormMode | str,
    alpha: float,
    x: Tensor,
    beta: float,
    y: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    epsilon: float = 1e-5,
) -> None:
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias of x [N, C, *spatial]; y may be x.

    Args:
        scale: Like bias, mean and variance [1, C, 1, ...], or [1, C, *spatial] per activation.
    """
    how, inputs = member(BatchNormMode, mode), (x, scale, bias, mean, variance)
    arguments = (*map(described, (*inputs, y)), how, number(epsilon, "epsilon"))
    handle.execute(BatchNormInferenceProblem, arguments, alpha, inputs, beta, (y,))


def batch_norm_forward(
    handle: Handle,
    mode: BatchNormMode | str,
    alpha: float,
    x: Tensor,
    beta: float,
    y: Tensor,
    scale: Tensor,
    bias: Tensor,
    saved_mean: Tensor,
    saved_inv_std: Tensor,
    *,
    running_mean: Tensor | None = None,
    running_variance: Tensor | None = None,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    z: Tensor | None = None,
    activation: ActivationDescriptor | None = None,
) -> None:
    """y = activation(scale * (x - m) / sqrt(v + epsilon) + bias + z), m and v of the batch, rounded once; y may be x.

    Args:
        scale: Like bias, saved and running statistics [1, C, 1, ...], or [1, C, *spatial] per activation.
        saved_mean: Overwritten with m, for the backward operation.
        saved_inv_std: Overwritten with 1 / sqrt(v + epsilon), v divided by the number of elements.
        running_mean: Updated in place: (1 - momentum) * itself + momentum * m; left as it is where x has no elements.
        running_variance: Likewise with the unbiased variance, divided by the number of elements less one.
        momentum: Weight of this batch, cuDNN's exponentialAverageFactor.
        z: A residual like x, with an activation only.
        activation: ReLU, or None for the identity.

    Raises:
        BadParamError: also where running statistics are to be updated from a single element.

    Source: cuDNN's cudnnBatchNormalizationForwardTrainingEx.
    """
    running, saved = (running_mean, running_variance), (saved_mean, saved_inv_std)
    arguments = (
        *map(described, (x, scale, bias, y, *saved)),
        member(BatchNormMode, mode),
        number(epsilon, "epsilon"),
        0.0 if running_mean is None else number(momentum, "momentum"),
        *map(described, (*running, *running, z)),
        activation,
    )
    updated = there(*running)
    inputs, outputs = (x, scale, bias, *there(z), *updated), (y, *saved, *updated)
    handle.execute(BatchNormForwardProblem, arguments, alpha, inputs, beta, outputs)


def batch_norm_backward(
    handle: Handle,
    mode: BatchNormMode | str,
    alpha: float,
    beta: float,
    parameter_alpha: float,
    parameter_beta: float,
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    scale: Tensor,
    dscale: Tensor,
    dbias: Tensor,
    saved_mean: Tensor,
    saved_inv_std: Tensor,
    *,
    activation: ActivationDescriptor | None = None,
    y: Tensor | None = None,
    bias: Tensor | None = None,
    dz: Tensor | None = None,
) -> None:
    """dx, dscale and dbias from what the forward operation read and saved, and from dy; dx may be dy.

    Args:
        alpha: With beta for dx.
        parameter_alpha: With parameter_beta for dscale and dbias.
        activation: The forward operation's.
        y: What it wrote, with alpha 1 and beta 0; with an activation only, which needs it.
        bias: Its own, where it had an activation and no z: less may have to be read then.
        dz: Overwritten with the gradient of z, dy where y > 0.

    Source: cuDNN's cudnnBatchNormalizationBackwardEx.
    """
    inputs, outputs = (x, dy, scale, saved_mean, saved_inv_std), (dx, dscale, dbias)
    arguments = (*map(described, (*inputs, *outputs)), member(BatchNormMode, mode))
    factors = (alpha, beta, parameter_alpha, parameter_beta)
    further = (*map(described, (bias, y, dz)), activation)
    go_back(handle, BatchNormBackwardProblem, arguments, factors, (*inputs, bias, y), (*outputs, dz), further)
