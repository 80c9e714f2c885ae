"""Convolution with a bias."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.problems import AddProblem, ConvolutionProblem, Direction, FusedConvolutionProblem, SumProblem
from dnncore.torch.bridge import operate
from dnncore.torch.dtypes import DTYPES
from dnncore.torch.functions.draft import Draft
from dnncore.torch.functions.formats import along_channels, autocast, maybe_autocast, new, vector, wants_gradient
from dnncore.torch.functions.gradients import Function, first_derivative, gradients_of
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation, Step

__all__ = ["convolution"]


def _forward(
    conv: ConvolutionDescriptor,
    casts: bool,
    x: TensorDescriptor,
    w: TensorDescriptor,
    bias: TensorDescriptor | None = None,
) -> Operation:
    """(x, w, bias) -> y, and w where it is cast.

    A bias is added in one launch, or written before the convolution by a launch of its own, whichever is faster.
    """
    draft, w_at, bias_at = Draft(2 if bias is None else 3), 1, 2
    y = new(conv.output_shape(x.shape, w.shape), x, w)
    y_at = draft.make(y)
    if casts:
        w, w_at = draft.parameter(w, w_at, x.dtype)
    plain = ConvolutionProblem(Direction.FORWARD, x, w, y, conv)
    if bias is None:
        return draft.operation((Step(plain, (0, w_at, y_at)),))
    if casts:
        bias, bias_at = draft.parameter(bias, bias_at, x.dtype, x.dtype.compute)
    along = along_channels(bias, y.ndim)
    two_launches = (Step(AddProblem(along, y), (bias_at, y_at)), Step(plain, (0, w_at, y_at), beta=1.0))
    if not x.dtype.is_floating:
        return draft.operation(two_launches)
    one_launch = (Step(FusedConvolutionProblem(x, w, y, conv, bias=along), (0, w_at, bias_at, y_at)),)
    return draft.operation(two_launches, one_launch)


def _backward(
    conv: ConvolutionDescriptor,
    dtypes: tuple[torch.dtype, torch.dtype],
    wanted: tuple[bool, ...],
    x: TensorDescriptor,
    w: TensorDescriptor,
    dy: TensorDescriptor,
) -> Operation:
    """(x, w, dy) -> those of dx, dw, db that are wanted, dw and db in these dtypes.

    Args:
        wanted: Of x, w, the settings and, where there is one, the bias.
    """
    draft = Draft(3)
    of_w, of_bias = (DTYPES[dtype] for dtype in dtypes)
    made = new(x.shape, x, w), new(w.shape, w), vector(dy.dtype, dy.shape[1])
    results = made[0], made[1].with_dtype(of_w), made[2].with_dtype(of_bias)
    dx, dw, db = draft.make_wanted(results, (*wanted[:2], *(wanted[3:] or (False,))))
    if dx is not None:
        draft.compute(dx, ConvolutionProblem(Direction.BACKWARD_DATA, made[0], w, dy, conv), 1, 2)
    if dw is not None:
        draft.compute(dw, ConvolutionProblem(Direction.BACKWARD_FILTER, x, made[1], dy, conv), 0, 2)
    if db is not None:
        draft.compute(db, SumProblem(dy, along_channels(made[2], dy.ndim)), 2)
    return draft.operation()


_Settings = tuple[ConvolutionDescriptor, bool]
"""The convolution, and whether parameters are cast."""


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, settings: _Settings, bias: Tensor | None = None) -> Tensor:
        given = (x, w) if bias is None else (x, w, bias)
        found = operate(_forward, settings, given, id(w))
        of_w = w.dtype
        ctx.save_for_backward(x, w if of_w is x.dtype else found[1])
        ctx.settings = settings[0], (of_w, of_w if bias is None else bias.dtype), id(w)
        return found[0]

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        conv, dtypes, caller = ctx.settings
        wanted = ctx.needs_input_grad
        x, w = ctx.saved_tensors
        return gradients_of(wanted)((*operate(_backward, (conv, dtypes, wanted), (x, w, dy), caller), None))


@cache
def _plain(spatial_ndim: int) -> ConvolutionDescriptor:
    return ConvolutionDescriptor.make(spatial_ndim)


@breaks_graph
def convolution(x: Tensor, w: Tensor, bias: Tensor | None = None, conv: ConvolutionDescriptor | None = None) -> Tensor:
    """y [N, K, *output] = x [N, C, *input] convolved with w [K, C/G, *filter], plus bias [K].

    Args:
        conv: Padding, stride, dilation, groups, mode, math; None for the plain one. Its math alone permits tf32, not
            `torch.backends.cudnn.allow_tf32`, which is on where nobody has turned it off.

    Under `torch.autocast` x and w are cast to its dtype, and a bias of float32 is added as it is.
    """
    casts = False
    if maybe_autocast():
        x, casts = autocast(x)
    if conv is None:
        conv = _plain(x.dim() - 2)
    if wants_gradient(x, w, bias):
        settings = conv, casts
        apply = _Convolution.apply
        y: Tensor = apply(x, w, settings) if bias is None else apply(x, w, settings, bias)
        return y
    return operate(_forward, (conv, casts), (x, w) if bias is None else (x, w, bias), id(w))[0]
