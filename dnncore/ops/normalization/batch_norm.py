"""Batch normalisation: with given statistics, with those of the batch, and backward."""

from __future__ import annotations

from dnncore.descriptors import BatchNormMode
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
) -> None:
    """y = scale * (x - m) / sqrt(v + epsilon) + bias with mean m and variance v of the batch; y may be x.

    Args:
        scale: Like bias, saved and running statistics [1, C, 1, ...], or [1, C, *spatial] per activation.
        saved_mean: Overwritten with m, for the backward operation.
        saved_inv_std: Overwritten with 1 / sqrt(v + epsilon), v divided by the number of elements.
        running_mean: Updated in place: (1 - momentum) * itself + momentum * m; left as it is where x has no elements.
        running_variance: Likewise with the unbiased variance, divided by the number of elements less one.
        momentum: Weight of this batch, cuDNN's exponentialAverageFactor.

    Raises:
        BadParamError: also where running statistics are to be updated from a single element.
    """
    running, saved = (running_mean, running_variance), (saved_mean, saved_inv_std)
    arguments = (
        *map(described, (x, scale, bias, y, *saved)),
        member(BatchNormMode, mode),
        number(epsilon, "epsilon"),
        0.0 if running_mean is None else number(momentum, "momentum"),
        *map(described, (*running, *running)),
    )
    updated = there(*running)
    inputs, outputs = (x, scale, bias, *updated), (y, *saved, *updated)
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
) -> None:
    """dx, dscale and dbias from what the forward operation read and saved, and from dy; dx may be dy.

    Args:
        alpha: With beta for dx.
        parameter_alpha: With parameter_beta for dscale and dbias.
    """
    inputs, outputs = (x, dy, scale, saved_mean, saved_inv_std), (dx, dscale, dbias)
    arguments = (*map(described, (*inputs, *outputs)), member(BatchNormMode, mode))
    factors = (alpha, beta, parameter_alpha, parameter_beta)
    go_back(handle, BatchNormBackwardProblem, arguments, factors, inputs, outputs)
