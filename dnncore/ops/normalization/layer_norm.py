"""Layer and RMS normalisation, forward and backward."""

from __future__ import annotations

from dnncore.descriptors.settings import number, whole
from dnncore.handle import Handle
from dnncore.ops.normalization.optional import Factors, Inputs, Outputs, described, go_back, there
from dnncore.problems import LayerNormBackwardProblem, LayerNormForwardProblem
from dnncore.tensor import Tensor

__all__ = ["layer_norm_backward", "layer_norm_forward", "rms_norm_backward", "rms_norm_forward"]


def layer_norm_forward(
    handle: Handle,
    axis: int,
    alpha: float,
    x: Tensor,
    beta: float,
    y: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    saved_mean: Tensor,
    saved_inv_std: Tensor,
    *,
    epsilon: float = 1e-5,
) -> None:
    """y = scale * (x - m) / sqrt(v + epsilon) + bias, m and v over dimensions axis, axis + 1, ... of x; y may be x.

    Args:
        axis: First dimension that is normalised over.
        scale: Like bias [1, ..., 1, *x.shape[axis:]]; None for 1, as None for a bias is 0.
        saved_mean: [*x.shape[:axis], 1, ..., 1], overwritten with m, for the backward operation.
        saved_inv_std: Likewise with 1 / sqrt(v + epsilon).
    """
    _layer_norm_forward(handle, axis, alpha, x, beta, y, scale, bias, saved_mean, saved_inv_std, epsilon)


def rms_norm_forward(
    handle: Handle,
    axis: int,
    alpha: float,
    x: Tensor,
    beta: float,
    y: Tensor,
    scale: Tensor | None,
    saved_inv_std: Tensor,
    *,
    epsilon: float = 1e-5,
) -> None:
    """y = scale * x / sqrt(mean of x^2 + epsilon), the mean over dimensions axis, axis + 1, ... of x; y may be x.

    Source: arXiv 1910.07467.
    """
    _layer_norm_forward(handle, axis, alpha, x, beta, y, scale, None, None, saved_inv_std, epsilon)


def _layer_norm_forward(
    handle: Handle,
    axis: int,
    alpha: float,
    x: Tensor,
    beta: float,
    y: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    saved_mean: Tensor | None,
    saved_inv_std: Tensor,
    epsilon: float,
) -> None:
    arguments = (
        *map(described, (x, y, saved_inv_std)),
        whole(axis, "axis"),
        number(epsilon, "epsilon"),
        *map(described, (saved_mean, scale, bias)),
    )
    inputs, outputs = (x, *there(scale, bias)), (y, *there(saved_mean), saved_inv_std)
    handle.execute(LayerNormForwardProblem, arguments, alpha, inputs, beta, outputs)


def layer_norm_backward(
    handle: Handle,
    axis: int,
    alpha: float,
    beta: float,
    parameter_alpha: float,
    parameter_beta: float,
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    scale: Tensor | None,
    dscale: Tensor | None,
    dbias: Tensor | None,
    saved_mean: Tensor,
    saved_inv_std: Tensor,
) -> None:
    """dx, and dscale and dbias where they are not None, from dy and what forward read and saved; dx may be dy."""
    _layer_norm_backward(
        handle,
        axis,
        (alpha, beta, parameter_alpha, parameter_beta),
        (x, dy, scale, saved_mean, saved_inv_std),
        (dx, dscale, dbias),
    )


def rms_norm_backward(
    handle: Handle,
    axis: int,
    alpha: float,
    beta: float,
    parameter_alpha: float,
    parameter_beta: float,
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
    scale: Tensor | None,
    dscale: Tensor | None,
    saved_inv_std: Tensor,
) -> None:
    """dx, and dscale where it is not None, from dy and what forward read and saved; dx may be dy."""
    _layer_norm_backward(
        handle,
        axis,
        (alpha, beta, parameter_alpha, parameter_beta),
        (x, dy, scale, None, saved_inv_std),
        (dx, dscale, None),
    )


def _layer_norm_backward(handle: Handle, axis: int, factors: Factors, inputs: Inputs, outputs: Outputs) -> None:
    x, dy, scale, saved_mean, saved_inv_std = inputs
    dx, dscale, dbias = outputs
    arguments = (
        *map(described, (x, dy, saved_inv_std, dx)),
        whole(axis, "axis"),
        *map(described, (saved_mean, scale, dscale, dbias)),
    )
    go_back(handle, LayerNormBackwardProblem, arguments, factors, inputs, outputs)
