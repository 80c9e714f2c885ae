"""Convolution with a bias."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.problems import AddProblem, ConvolutionProblem, Direction, FusedConvolutionProblem, SumProblem
from dnncore.torch.bridge import operate
from dnncore.torch.functions.draft import Draft
from dnncore.torch.functions.formats import along_channels, autocast, maybe_autocast, new, vector, wants_gradient
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.operation import Operation, Step

__all__ = ["convolution"]


def _forward(
    conv: ConvolutionDescriptor, x: TensorDescriptor, w: TensorDescriptor, bias: TensorDescriptor | None
) -> Operation:
    """(x, w, bias) -> y: with a bias in one launch, or after one that writes it first, whichever is faster."""
    y = new(conv.output_shape(x.shape, w.shape), x, w)
    plain = ConvolutionProblem(Direction.FORWARD, x, w, y, conv)
    if bias is None:
        return Operation.of(plain, (0, 1, 3), y)
    along = along_channels(bias, y.ndim)
    two_launches = (Step(AddProblem(along, y), (2, 3)), Step(plain, (0, 1, 3), beta=1.0))
    if not x.dtype.is_floating:
        return Operation((y,), (two_launches,))
    one_launch = (Step(FusedConvolutionProblem(x, w, y, conv, bias=along), (0, 1, 2, 3)),)
    return Operation((y,), (two_launches, one_launch))


def _backward(
    conv: ConvolutionDescriptor,
    wanted: tuple[bool, bool, bool],
    x: TensorDescriptor,
    w: TensorDescriptor,
    dy: TensorDescriptor,
) -> Operation:
    """(x, w, dy) -> those of dx, dw, db that are wanted."""
    draft = Draft(3)
    if wanted[0]:
        dx = new(x.shape, x, w)
        draft.step(ConvolutionProblem(Direction.BACKWARD_DATA, dx, w, dy, conv), 1, 2, draft.make(dx))
    if wanted[1]:
        dw = new(w.shape, w)
        draft.step(ConvolutionProblem(Direction.BACKWARD_FILTER, x, dw, dy, conv), 0, 2, draft.make(dw))
    if wanted[2]:
        db = vector(dy.dtype, dy.shape[1])
        draft.step(SumProblem(dy, along_channels(db, dy.ndim)), 2, draft.make(db))
    return draft.operation()


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, conv: ConvolutionDescriptor) -> Tensor:
        (y,) = operate(_forward, (conv,), (x, w, bias))
        ctx.save_for_backward(x, w)
        ctx.conv = conv
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:3]
        found = iter(operate(_backward, (ctx.conv, wanted), (*ctx.saved_tensors, dy)))
        return *(next(found) if is_wanted else None for is_wanted in wanted), None


@cache
def _plain(spatial_ndim: int) -> ConvolutionDescriptor:
    return ConvolutionDescriptor.make(spatial_ndim)


def convolution(x: Tensor, w: Tensor, bias: Tensor | None = None, conv: ConvolutionDescriptor | None = None) -> Tensor:
    """y [N, K, *output] = x [N, C, *input] convolved with w [K, C/G, *filter], plus bias [K].

    Args:
        conv: Padding, stride, dilation, groups, mode, math; None for the plain one. Its math alone permits tf32, not
            `torch.backends.cudnn.allow_tf32`, which is on where nobody has turned it off.

    Under `torch.autocast` all three are cast to its dtype.
    """
    if maybe_autocast():
        x, w, bias = autocast(x, w, bias)
    if conv is None:
        conv = _plain(x.dim() - 2)
    if wants_gradient(x, w, bias):
        y: Tensor = _Convolution.apply(x, w, bias, conv)
        return y
    return operate(_forward, (conv,), (x, w, bias))[0]
