"""Convolution with a bias, and the ReLU behind it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import ConvolutionDescriptor, MathType, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import AddProblem, ConvolutionProblem, Direction, FusedConvolutionProblem, SumProblem
from dnncore.torch.bridge import operate
from dnncore.torch.dtypes import DTYPES, TORCH_DTYPES
from dnncore.torch.functions.draft import RELU, Draft, is_cast, relu_in_place, sum_dtype
from dnncore.torch.functions.formats import (
    along_channels,
    autocast,
    maybe_autocast,
    new,
    relaid,
    vector,
    wants_gradient,
)
from dnncore.torch.functions.gradients import Function, first_derivative, gradients_of
from dnncore.torch.functions.link import DY, Settings
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation, Step

__all__ = ["LINK", "convolution"]

_OF_16_BITS = (DType.FLOAT16, DType.BFLOAT16)


def _forward(
    conv: ConvolutionDescriptor,
    casts: bool,
    relu: bool,
    x: TensorDescriptor,
    w: TensorDescriptor,
    bias: TensorDescriptor | None = None,
) -> Operation:
    """(x, w, bias) -> y, and w where it is cast, perhaps with its channels innermost: then neither this convolution nor the
    backward one has to see to that.
    """
    copies: list[TensorDescriptor | None] = [None]
    if casts and is_cast(w.dtype, x.dtype) and _may_relay(conv, x):
        copies += filter(None, (relaid(w),))
    return Operation.any_of(_forward_by(conv, casts, relu, copy, x, w, bias) for copy in copies)


def _may_relay(conv: ConvolutionDescriptor, x: TensorDescriptor) -> bool:
    """Whether it is worth asking what a convolution would take of operands with their channels innermost, as matrix units want."""
    return conv.groups == 1 and (x.dtype in _OF_16_BITS or (x.dtype is DType.FLOAT32 and conv.math is MathType.TF32))


def _forward_by(
    conv: ConvolutionDescriptor,
    casts: bool,
    relu: bool,
    copy: TensorDescriptor | None,
    x: TensorDescriptor,
    w: TensorDescriptor,
    bias: TensorDescriptor | None,
) -> Operation:
    """`_forward` with w, where it is cast, lying like `copy`.

    A bias is added, and the ReLU taken, in one launch; or the bias is written before the convolution by a launch of its own, and
    the ReLU is one behind it: whichever is faster.
    """
    draft, w_at, bias_at = Draft(2 if bias is None else 3), 1, 2
    y = new(conv.output_shape(x.shape, w.shape), x, w)
    y_at = draft.make(y)
    if casts:
        w, w_at = draft.parameter(w, w_at, x.dtype, lying=copy)
    plain = ConvolutionProblem(Direction.FORWARD, x, w, y, conv)
    behind = (relu_in_place(y, y_at),) if relu else ()
    along: TensorDescriptor | None = None
    biases: tuple[int, ...] = ()
    apart: tuple[Step, ...]
    if bias is None:
        apart = (Step(plain, (0, w_at, y_at)), *behind)
    else:
        if casts:
            bias, bias_at = draft.parameter(bias, bias_at, x.dtype, x.dtype.compute)
        along, biases = along_channels(bias, y.ndim), (bias_at,)
        apart = (Step(AddProblem(along, y), (bias_at, y_at)), Step(plain, (0, w_at, y_at), beta=1.0), *behind)
    if len(apart) == 1 or not x.dtype.is_floating:
        return draft.operation(apart)
    problem = FusedConvolutionProblem(x, w, y, conv, bias=along, activation=RELU if relu else None)
    return draft.operation(apart, (Step(problem, (0, w_at, *biases, y_at)),))


_Parameters = tuple[torch.dtype, torch.dtype, tuple[int, ...] | None]
"""Dtypes of w and of the bias, and strides of w where a copy of it was saved."""


def _backward(
    conv: ConvolutionDescriptor,
    parameters: _Parameters,
    wanted: tuple[bool, ...],
    x: TensorDescriptor,
    w: TensorDescriptor,
    dy: TensorDescriptor,
    y: TensorDescriptor | None = None,
) -> Operation:
    """(x, w, dy, y) -> those of dx, dw, db that are wanted, dw and db in the parameters' dtypes.

    Args:
        conv: The convolution.
        parameters: What they were before they were cast.
        wanted: Of x, w, the settings and, where there is one, the bias.
        x: As it was given, or cast.
        w: As the forward had it.
        dy: Of y.
        y: What the ReLU gave, where there was one.
    """
    of_w, of_bias, strides = parameters
    parameter = TensorDescriptor(DTYPES[of_w], w.shape, w.strides if strides is None else strides)
    dw, dzs = new(w.shape, parameter, dtype=w.dtype), [dy if y is None else y]
    dws = [dw]
    if _may_relay(conv, x):
        if wanted[0] and wanted[1]:  # else the one that has dz with channels innermost is the only one that reads it
            dzs += filter(None, (relaid(dzs[0]),))
        if dw.dtype is not parameter.dtype:
            wide = dw.with_dtype(dw.dtype.compute)
            dws.append(relaid(dw) or (wide if wide.dtype is parameter.dtype else dw))
    return Operation.any_of(
        _backward_by(conv, (parameter, DTYPES[of_bias]), wanted, x, w, dy, y, seed, computed)
        for seed in dzs
        for computed in dws
    )


def _backward_by(
    conv: ConvolutionDescriptor,
    parameters: tuple[TensorDescriptor, DType],
    wanted: tuple[bool, ...],
    x: TensorDescriptor,
    w: TensorDescriptor,
    dy: TensorDescriptor,
    y: TensorDescriptor | None,
    seed: TensorDescriptor,
    computed: TensorDescriptor,
) -> Operation:
    """`_backward` with the convolution's own gradient dz copied where it is to lie like `seed`, and dw where it is `computed`
    otherwise than it is returned. dz is dy, or what the ReLU leaves of that.
    """
    draft, (parameter, of_bias) = Draft(3 if y is None else 4), parameters
    results = (
        new(x.shape, x, parameter),
        new(w.shape, parameter),
        vector(of_bias, dy.shape[1]),
    )
    dx, dw, db = draft.make_wanted(results, (*wanted[:2], *(wanted[3:] or (False,))))
    dz, dz_at = (dy, 2) if y is None else draft.relu_gradient(y, 3, dy, 2)
    seed_at = dz_at if seed is dz else draft.copied(dz, dz_at, seed)
    if dx is not None:
        draft.compute(dx, ConvolutionProblem(Direction.BACKWARD_DATA, results[0], w, seed, conv), 1, seed_at)
    if dw is not None:
        draft.compute(dw, ConvolutionProblem(Direction.BACKWARD_FILTER, x, computed, seed, conv), 0, seed_at)
    if db is not None:
        sums = vector(sum_dtype(dz.dtype, of_bias), dz.shape[1])
        draft.compute(db, SumProblem(dz, along_channels(sums, dz.ndim)), dz_at)
    return draft.operation()


_Settings = tuple[ConvolutionDescriptor, bool, bool]
"""The convolution, whether parameters are cast, and whether a ReLU follows."""


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, settings: _Settings, bias: Tensor | None = None) -> Tensor:
        given = (x, w) if bias is None else (x, w, bias)
        found = operate(_forward, settings, given, id(w))
        of_w = w.dtype
        saved, strides = (w, None) if of_w is x.dtype else (found[1], w.stride())
        if settings[2]:
            ctx.save_for_backward(x, saved, found[0])
        else:
            ctx.save_for_backward(x, saved)
        ctx.settings = settings[0], (of_w, of_w if bias is None else bias.dtype, strides), id(w)
        return found[0]

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        conv, parameters, caller = ctx.settings
        wanted = ctx.needs_input_grad
        x, w, *of_relu = ctx.saved_tensors
        return gradients_of(wanted)(
            (*operate(_backward, (conv, parameters, wanted), (x, w, dy, *of_relu), caller), None)
        )


class _Link:
    """A convolution as one of several layers: settings are this, the convolution, and whether a ReLU follows. Immutable."""

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:
        """(x, w, bias) -> y, and parameters that are cast, w first."""
        _, conv, relu = settings
        return _forward(conv, casts, relu, *given)

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:
        """x, w as the forward had it, dy, and y where a ReLU follows."""
        y = len(given)
        w = y + 1 if casts and is_cast(given[1].dtype, given[0].dtype) else 1
        return (0, w, DY, y) if settings[2] else (0, w, DY)

    def backward(
        self,
        settings: Settings,
        given: Sequence[TensorDescriptor],
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],
    ) -> tuple[Operation, tuple[int, ...]]:
        """Those that are wanted, of parameters in their dtypes."""
        w = given[1]
        parameters = TORCH_DTYPES[w.dtype], TORCH_DTYPES[given[-1].dtype], w.strides
        of = (*wanted[:2], False, *wanted[2:])
        return _backward(settings[1], parameters, of, *read), tuple(
            n for n, is_wanted in enumerate(wanted) if is_wanted
        )


LINK = _Link()


@cache
def _plain(spatial_ndim: int) -> ConvolutionDescriptor:
    return ConvolutionDescriptor.make(spatial_ndim)


@breaks_graph
def convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    conv: ConvolutionDescriptor | None = None,
    relu: bool = False,
) -> Tensor:
    """y [N, K, *output] = x [N, C, *input] convolved with w [K, C/G, *filter], plus bias [K].

    Args:
        conv: Padding, stride, dilation, groups, mode, math; None for the plain one. Its math alone permits tf32, not
            `torch.backends.cudnn.allow_tf32`, which is on where nobody has turned it off.
        relu: Whether y is max(that, 0): forward and backward one operation, with the same result as one after the other. Of
            floating point.

    Under `torch.autocast` x and w are cast to its dtype, and a bias of float32 is added as it is.
    """
    casts = False
    if maybe_autocast():
        x, casts = autocast(x)
    if conv is None:
        conv = _plain(x.dim() - 2)
    if wants_gradient(x, w, bias):
        settings = conv, casts, relu
        apply = _Convolution.apply
        y: Tensor = apply(x, w, settings) if bias is None else apply(x, w, settings, bias)
        return y
    return operate(_forward, (conv, casts, relu), (x, w) if bias is None else (x, w, bias), id(w))[0]
