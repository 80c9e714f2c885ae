"""Layer, group and local response normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import LRNDescriptor, TensorDescriptor
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


def _described(parameter: Tensor | None) -> TensorDescriptor | None:
    return None if parameter is None else describe(parameter)


def _normalize(
    ctx: Any, kind: Any, x: Tensor, kept: Sequence[int], affine: Sequence[Tensor | None], epsilon: float, **cut: int
) -> Tensor:
    """What the forward passes share.

    Args:
        ctx: Keeps what the backward pass needs.
        kind: The problem.
        x: What is normalised.
        kept: Shape of the statistics.
        affine: Scale and bias, as the problem has them.
        epsilon: Added to variances.
        cut: The problem's field that says what is normalised together.
    """
    y = torch.empty_like(x)
    mean, inv_std = (torch.empty(tuple(kept), dtype=statistics_dtype(x), device=x.device) for _ in range(2))
    statistics = {"saved_mean": describe(mean), "saved_inv_std": describe(inv_std)}
    scale, bias = map(_described, affine)
    problem = kind(x=describe(x), y=describe(y), **statistics, epsilon=epsilon, scale=scale, bias=bias, **cut)
    given = [parameter for parameter in affine if parameter is not None]
    launch(problem, (x, *given), (y, mean, inv_std))
    ctx.save_for_backward(x, mean, inv_std, *given)
    ctx.cut, ctx.has_scale, ctx.has_bias = cut, scale is not None, bias is not None
    return y


def _gradients(ctx: Any, kind: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dx, dscale and dbias: what the backward passes share."""
    x, mean, inv_std, *given = ctx.saved_tensors
    scale = given[0] if ctx.has_scale else None
    dx = torch.empty_like(x)
    dscale = torch.empty_like(given[0]) if ctx.has_scale else None
    dbias = torch.empty_like(given[-1]) if ctx.has_bias else None
    problem = kind(
        x=describe(x),
        dy=describe(dy),
        saved_mean=describe(mean),
        saved_inv_std=describe(inv_std),
        dx=describe(dx),
        scale=_described(scale),
        dscale=_described(dscale),
        dbias=_described(dbias),
        **ctx.cut,
    )
    inputs = [t for t in (x, dy, scale, mean, inv_std) if t is not None]
    launch(problem, inputs, [t for t in (dx, dscale, dbias) if t is not None])
    return dx, dscale, dbias


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
        kept = (*x.shape[:axis], *(1,) * (x.dim() - axis))
        affine = [None if p is None else p.reshape(*(1,) * axis, *x.shape[axis:]) for p in (weight, bias)]
        return _normalize(ctx, LayerNormForwardProblem, x, kept, affine, epsilon, axis=axis)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, *parameters = _gradients(ctx, LayerNormBackwardProblem, dy)
        shape = dx.shape[ctx.cut["axis"] :]
        return dx, None, *(None if gradient is None else gradient.reshape(shape) for gradient in parameters), None


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
        kept = (x.shape[0], groups, *(1,) * (x.dim() - 2))
        affine = [None if p is None else along_channels(p, x.dim()) for p in (weight, bias)]
        return _normalize(ctx, GroupNormForwardProblem, x, kept, affine, epsilon, groups=groups)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, *parameters = _gradients(ctx, GroupNormBackwardProblem, dy)
        return dx, None, *(None if gradient is None else gradient.reshape(-1) for gradient in parameters), None


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
