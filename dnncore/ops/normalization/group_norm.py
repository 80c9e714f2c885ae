"""Group normalisation, and with a group for each channel instance normalisation, forward and backward."""

from __future__ import annotations

from dnncore.descriptors.settings import number, whole
from dnncore.handle import Handle
from dnncore.ops.normalization.optional import described, go_back, there
from dnncore.problems import GroupNormBackwardProblem, GroupNormForwardProblem
from dnncore.tensor import Tensor

__all__ = ["group_norm_backward", "group_norm_forward"]


def group_norm_forward(
    handle: Handle,
    groups: int,
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
    """y = scale * (x - m) / sqrt(v + epsilon) + bias, m and v over a group's channels and places; y may be x.

    Args:
        groups: G, a divisor of C; with C it is instance normalisation.
        scale: Like bias [1, C, 1, ...]; None for 1, as None for a bias is 0.
        saved_mean: [N, G, 1, ...], overwritten with m, for the backward operation.
        saved_inv_std: Likewise with 1 / sqrt(v + epsilon).

    Source: arXiv 1803.08494.
    """
    arguments = (
        *map(described, (x, y, saved_mean, saved_inv_std)),
        whole(groups, "groups"),
        number(epsilon, "epsilon"),
        *map(described, (scale, bias)),
    )
    inputs, outputs = (x, *there(scale, bias)), (y, saved_mean, saved_inv_std)
    handle.execute(GroupNormForwardProblem, arguments, alpha, inputs, beta, outputs)


def group_norm_backward(
    handle: Handle,
    groups: int,
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
    arguments = (
        *map(described, (x, dy, saved_mean, saved_inv_std, dx)),
        whole(groups, "groups"),
        *map(described, (scale, dscale, dbias)),
    )
    go_back(
        handle,
        GroupNormBackwardProblem,
        arguments,
        (alpha, beta, parameter_alpha, parameter_beta),
        (x, dy, scale, saved_mean, saved_inv_std),
        (dx, dscale, dbias),
    )
