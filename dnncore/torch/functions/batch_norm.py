"""Batch normalisation, in training and outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import BatchNormMode
from dnncore.errors import BadParamError
from dnncore.problems import BatchNormBackwardProblem, BatchNormForwardProblem, BatchNormInferenceProblem
from dnncore.torch.bridge import describe, launch
from dnncore.torch.functions.formats import along_channels, statistics_dtype
from dnncore.torch.functions.gradients import first_derivative

__all__ = ["batch_norm"]


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        bias: Tensor,
        running: tuple[Tensor, ...] | None,
        momentum: float,
        epsilon: float,
    ) -> Tensor:
        y = torch.empty_like(x)
        s, b = (along_channels(p, x.dim()) for p in (scale, bias))
        mean, inv_std = torch.empty_like(s), torch.empty_like(s)
        stats = () if running is None else tuple(along_channels(r, x.dim()) for r in running)
        means, variances = map(describe, stats) if stats else (None, None)
        problem = BatchNormForwardProblem(
            x=describe(x),
            scale=describe(s),
            bias=describe(b),
            y=describe(y),
            saved_mean=describe(mean),
            saved_inv_std=describe(inv_std),
            mode=BatchNormMode.SPATIAL,
            epsilon=epsilon,
            momentum=momentum if stats else 0.0,
            running_mean=means,
            running_variance=variances,
            new_running_mean=means,
            new_running_variance=variances,
        )
        launch(problem, (x, s, b, *stats), (y, mean, inv_std, *stats))
        ctx.save_for_backward(x, scale, mean, inv_std)
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, mean, inv_std = ctx.saved_tensors
        s = along_channels(scale, x.dim())
        dx, dscale, dbias = torch.empty_like(x), torch.empty_like(s), torch.empty_like(s)
        problem = BatchNormBackwardProblem(
            x=describe(x),
            dy=describe(dy),
            scale=describe(s),
            saved_mean=describe(mean),
            saved_inv_std=describe(inv_std),
            dx=describe(dx),
            dscale=describe(dscale),
            dbias=describe(dbias),
            mode=BatchNormMode.SPATIAL,
        )
        launch(problem, (x, dy, s, mean, inv_std), (dx, dscale, dbias))
        return dx, dscale.reshape(-1), dbias.reshape(-1), None, None, None


class _BatchNormInference(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float
    ) -> Tensor:
        y = torch.empty_like(x)
        s, b, m, v = (along_channels(p, x.dim()) for p in (scale, bias, mean, variance))
        problem = BatchNormInferenceProblem(
            x=describe(x),
            scale=describe(s),
            bias=describe(b),
            mean=describe(m),
            variance=describe(v),
            y=describe(y),
            mode=BatchNormMode.SPATIAL,
            epsilon=epsilon,
        )
        launch(problem, (x, s, b, m, v), (y,))
        ctx.save_for_backward(x, scale, mean, variance)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, mean, variance = ctx.saved_tensors
        factor = (variance + ctx.epsilon).rsqrt()
        axes = [axis for axis in range(x.dim()) if axis != 1]
        centred = (x - along_channels(mean, x.dim())) * along_channels(factor, x.dim())
        dx = (dy * along_channels(scale * factor, x.dim())).to(x.dtype)
        return dx, (dy * centred).sum(axes).to(scale.dtype), dy.sum(axes).to(scale.dtype), None, None, None


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalisation of x [N, C, *spatial] over batch and places, with the arguments of torch's.

    Args:
        running_mean, running_var: [C]; updated in training.

    Parameters and running statistics may be of any floating dtype; the arithmetic is in the compute type of x.
    """
    dtype = statistics_dtype(x)
    scale = x.new_ones(x.shape[1], dtype=dtype) if weight is None else weight.to(dtype)
    offset = x.new_zeros(x.shape[1], dtype=dtype) if bias is None else bias.to(dtype)
    running = None if running_mean is None or running_var is None else (running_mean, running_var)
    wide = None if running is None else tuple(statistic.to(dtype) for statistic in running)
    y: Tensor
    if training:
        y = _BatchNorm.apply(x, scale, offset, wide, momentum, eps)
        for statistic, updated in zip(running or (), wide or (), strict=True):
            if statistic is not updated:
                statistic.copy_(updated)
        return y
    if wide is None:
        raise BadParamError("batch_norm outside training needs running_mean and running_var")
    y = _BatchNormInference.apply(x, scale, offset, *wide, eps)
    return y
