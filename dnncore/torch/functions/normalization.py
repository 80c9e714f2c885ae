"""Layer, group and local response normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import LRNDescriptor
from dnncore.errors import BadParamError
from dnncore.problems import (
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    LRNBackwardProblem,
    LRNForwardProblem,
)
from dnncore.torch.bridge import describe, launch
from dnncore.torch.functions.formats import along_channels, in_statistics_dtype, statistics_dtype
from dnncore.torch.functions.gradients import first_derivative

__all__ = ["group_norm", "layer_norm", "local_response_norm"]


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
        y = torch.empty_like(x)
        kept = (*x.shape[:axis], *(1,) * (x.dim() - axis))
        mean, inv_std = (torch.empty(kept, dtype=statistics_dtype(x), device=x.device) for _ in range(2))
        affine = [None if p is None else p.reshape(*(1,) * axis, *x.shape[axis:]) for p in (weight, bias)]
        given = [p for p in affine if p is not None]
        problem = LayerNormForwardProblem(
            x=describe(x),
            y=describe(y),
            saved_mean=describe(mean),
            saved_inv_std=describe(inv_std),
            axis=axis,
            epsilon=epsilon,
            scale=None if affine[0] is None else describe(affine[0]),
            bias=None if affine[1] is None else describe(affine[1]),
        )
        launch(problem, (x, *given), (y, mean, inv_std))
        ctx.save_for_backward(x, mean, inv_std, *given)
        ctx.axis, ctx.has_scale, ctx.has_bias = axis, weight is not None, bias is not None
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, inv_std, *given = ctx.saved_tensors
        scale = given[0] if ctx.has_scale else None
        dx = torch.empty_like(x)
        dscale = torch.empty_like(given[0]) if ctx.has_scale else None
        dbias = torch.empty_like(given[-1]) if ctx.has_bias else None
        problem = LayerNormBackwardProblem(
            x=describe(x),
            dy=describe(dy),
            saved_mean=describe(mean),
            saved_inv_std=describe(inv_std),
            dx=describe(dx),
            axis=ctx.axis,
            scale=None if scale is None else describe(scale),
            dscale=None if dscale is None else describe(dscale),
            dbias=None if dbias is None else describe(dbias),
        )
        inputs = [t for t in (x, dy, scale, mean, inv_std) if t is not None]
        launch(problem, inputs, [t for t in (dx, dscale, dbias) if t is not None])
        shape = x.shape[ctx.axis :]
        return (
            dx,
            None,
            None if dscale is None else dscale.reshape(shape),
            None if dbias is None else dbias.reshape(shape),
            None,
        )


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalisation over the last dimensions, with the arguments of torch's; parameters of any floating dtype."""
    axis = x.dim() - len(normalized_shape)
    if tuple(x.shape[axis:]) != tuple(normalized_shape):
        raise BadParamError(f"normalized_shape {tuple(normalized_shape)} is not how x {tuple(x.shape)} ends")
    y: Tensor = _LayerNorm.apply(x, axis, in_statistics_dtype(x, weight), in_statistics_dtype(x, bias), eps)
    return y


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
        y = torch.empty_like(x)
        kept = (x.shape[0], groups, *(1,) * (x.dim() - 2))
        mean, inv_std = (torch.empty(kept, dtype=statistics_dtype(x), device=x.device) for _ in range(2))
        affine = [None if p is None else along_channels(p, x.dim()) for p in (weight, bias)]
        given = [p for p in affine if p is not None]
        problem = GroupNormForwardProblem(
            x=describe(x),
            y=describe(y),
            saved_mean=describe(mean),
            saved_inv_std=describe(inv_std),
            groups=groups,
            epsilon=epsilon,
            scale=None if affine[0] is None else describe(affine[0]),
            bias=None if affine[1] is None else describe(affine[1]),
        )
        launch(problem, (x, *given), (y, mean, inv_std))
        ctx.save_for_backward(x, mean, inv_std, *given)
        ctx.groups, ctx.has_scale, ctx.has_bias = groups, weight is not None, bias is not None
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, inv_std, *given = ctx.saved_tensors
        scale = given[0] if ctx.has_scale else None
        dx = torch.empty_like(x)
        dscale = torch.empty_like(given[0]) if ctx.has_scale else None
        dbias = torch.empty_like(given[-1]) if ctx.has_bias else None
        problem = GroupNormBackwardProblem(
            x=describe(x),
            dy=describe(dy),
            saved_mean=describe(mean),
            saved_inv_std=describe(inv_std),
            dx=describe(dx),
            groups=ctx.groups,
            scale=None if scale is None else describe(scale),
            dscale=None if dscale is None else describe(dscale),
            dbias=None if dbias is None else describe(dbias),
        )
        inputs = [t for t in (x, dy, scale, mean, inv_std) if t is not None]
        launch(problem, inputs, [t for t in (dx, dscale, dbias) if t is not None])
        return (
            dx,
            None,
            None if dscale is None else dscale.reshape(-1),
            None if dbias is None else dbias.reshape(-1),
            None,
        )


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalisation over groups of channels, with the arguments of torch's; parameters of any floating dtype."""
    y: Tensor = _GroupNorm.apply(x, num_groups, in_statistics_dtype(x, weight), in_statistics_dtype(x, bias), eps)
    return y


class _LRN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lrn: LRNDescriptor) -> Tensor:
        y = torch.empty_like(x)
        launch(LRNForwardProblem(describe(x), describe(y), lrn), (x,), (y,))
        ctx.save_for_backward(x, y)
        ctx.lrn = lrn
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        dx = torch.empty_like(x)
        launch(LRNBackwardProblem(describe(y), describe(dy), describe(x), describe(dx), ctx.lrn), (y, dy, x), (dx,))
        return dx, None


def local_response_norm(x: Tensor, lrn: LRNDescriptor) -> Tensor:
    """y = x / (k + alpha / n * sum of x^2 over a window)^beta of x [N, C, *spatial]."""
    y: Tensor = _LRN.apply(x, lrn)
    return y
