"""Group normalisation, and with a group for each channel instance normalisation, forward and backward."""

from __future__ import annotations

from dnncore.handle import Handle
from dnncore.ops.normalization.optional import described, there
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
    problem = GroupNormForwardProblem(
        x=x.descriptor,
        y=y.descriptor,
        saved_mean=saved_mean.descriptor,
        saved_inv_std=saved_inv_std.descriptor,
        groups=groups,
        epsilon=epsilon,
        scale=described(scale),
        bias=described(bias),
    )
    handle.run(handle.plan(problem), alpha, (x, *there(scale, bias)), beta, (y, saved_mean, saved_inv_std))


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
    old = (dscale, dbias) if parameter_beta else (None, None)
    problem = GroupNormBackwardProblem(
        x=x.descriptor,
        dy=dy.descriptor,
        saved_mean=saved_mean.descriptor,
        saved_inv_std=saved_inv_std.descriptor,
        dx=dx.descriptor,
        groups=groups,
        scale=described(scale),
        dscale=described(dscale),
        dbias=described(dbias),
        parameter_alpha=parameter_alpha,
        parameter_beta=parameter_beta,
        old_dscale=described(old[0]),
        old_dbias=described(old[1]),
    )
    inputs = there(x, dy, scale, saved_mean, saved_inv_std, *old)
    handle.run(handle.plan(problem), alpha, inputs, beta, there(dx, dscale, dbias))
