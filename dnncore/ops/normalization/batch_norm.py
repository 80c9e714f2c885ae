"""Batch normalisation: with given statistics, with those of the batch, and backward."""

from __future__ import annotations

from dnncore.descriptors import BatchNormMode
from dnncore.descriptors.settings import member
from dnncore.handle import Handle
from dnncore.ops.normalization.optional import described, there
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
    problem = BatchNormInferenceProblem(
        x=x.descriptor,
        scale=scale.descriptor,
        bias=bias.descriptor,
        mean=mean.descriptor,
        variance=variance.descriptor,
        y=y.descriptor,
        mode=member(BatchNormMode, mode),
        epsilon=epsilon,
    )
    handle.run(handle.plan(problem), alpha, (x, scale, bias, mean, variance), beta, (y,))


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
        running_mean: Updated in place: (1 - momentum) * itself + momentum * m.
        running_variance: Likewise with the unbiased variance, divided by the number of elements less one.
        momentum: Weight of this batch, cuDNN's exponentialAverageFactor.

    Raises:
        BadParamError: also where x has no elements, and where running statistics are to be updated from a single element.
    """
    means, variances = described(running_mean), described(running_variance)
    problem = BatchNormForwardProblem(
        x=x.descriptor,
        scale=scale.descriptor,
        bias=bias.descriptor,
        y=y.descriptor,
        saved_mean=saved_mean.descriptor,
        saved_inv_std=saved_inv_std.descriptor,
        mode=member(BatchNormMode, mode),
        epsilon=epsilon,
        momentum=0.0 if running_mean is None else momentum,
        running_mean=means,
        running_variance=variances,
        new_running_mean=means,
        new_running_variance=variances,
    )
    running = there(running_mean, running_variance)
    outputs = (y, saved_mean, saved_inv_std, *running)
    handle.run(handle.plan(problem), alpha, (x, scale, bias, *running), beta, outputs)


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
    old = (dscale, dbias) if parameter_beta else (None, None)
    problem = BatchNormBackwardProblem(
        x=x.descriptor,
        dy=dy.descriptor,
        scale=scale.descriptor,
        saved_mean=saved_mean.descriptor,
        saved_inv_std=saved_inv_std.descriptor,
        dx=dx.descriptor,
        dscale=dscale.descriptor,
        dbias=dbias.descriptor,
        mode=member(BatchNormMode, mode),
        parameter_alpha=parameter_alpha,
        parameter_beta=parameter_beta,
        old_dscale=described(old[0]),
        old_dbias=described(old[1]),
    )
    inputs = (x, dy, scale, saved_mean, saved_inv_std, *there(*old))
    handle.run(handle.plan(problem), alpha, inputs, beta, (dx, dscale, dbias))
