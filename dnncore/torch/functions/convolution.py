"""Convolution with a bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.problems import AddProblem, ConvolutionProblem, Direction, SumProblem
from dnncore.torch.bridge import describe, launch
from dnncore.torch.functions.formats import along_channels, autocast, new
from dnncore.torch.functions.gradients import first_derivative

__all__ = ["convolution"]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, conv: ConvolutionDescriptor) -> Tensor:
        y = new(x, conv.output_shape(x.shape, w.shape))
        beta = 0.0
        if bias is not None:
            along = along_channels(bias, y.dim())
            launch(AddProblem(describe(along), describe(y)), (along,), (y,))
            beta = 1.0
        problem = ConvolutionProblem(Direction.FORWARD, describe(x), describe(w), describe(y), conv)
        launch(problem, (x, w), (y,), beta=beta)
        ctx.save_for_backward(x, w)
        ctx.conv, ctx.has_bias = conv, bias is not None
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = new(x, x.shape)
            problem = ConvolutionProblem(Direction.BACKWARD_DATA, describe(dx), describe(w), describe(dy), ctx.conv)
            launch(problem, (w, dy), (dx,))
        if ctx.needs_input_grad[1]:
            dw = new(w, w.shape)
            problem = ConvolutionProblem(Direction.BACKWARD_FILTER, describe(x), describe(dw), describe(dy), ctx.conv)
            launch(problem, (x, dy), (dw,))
        if ctx.has_bias and ctx.needs_input_grad[2]:
            along = dy.new_empty(1, dy.shape[1], *(1,) * (dy.dim() - 2))
            launch(SumProblem(describe(dy), describe(along)), (dy,), (along,))
            db = along.reshape(-1)
        return dx, dw, db, None


def convolution(x: Tensor, w: Tensor, bias: Tensor | None = None, conv: ConvolutionDescriptor | None = None) -> Tensor:
    """y [N, K, *output] = x [N, C, *input] convolved with w [K, C/G, *filter], plus bias [K].

    Args:
        conv: Padding, stride, dilation, groups, mode; None for the plain one.

    Under `torch.autocast` all three are cast to its dtype.
    """
    x, w, bias = autocast(x, w, bias)
    y: Tensor = _Convolution.apply(x, w, bias, conv or ConvolutionDescriptor.make(x.dim() - 2))
    return y
