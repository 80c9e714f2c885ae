"""The fully connected layer, and the ReLU behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.problems import (
    AddProblem,
    ConvolutionProblem,
    Direction,
    FusedConvolutionProblem,
    MatmulProblem,
    SumProblem,
)
from dnncore.torch.bridge import operate
from dnncore.torch.dtypes import DTYPES, TORCH_DTYPES
from dnncore.torch.functions.draft import RELU, Draft, is_cast, relu_in_place, sum_dtype
from dnncore.torch.functions.formats import autocast, maybe_autocast, wants_gradient
from dnncore.torch.functions.gradients import Function, first_derivative, gradients_of
from dnncore.torch.functions.link import DY, Settings
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation, Step

__all__ = ["LINK", "linear", "product"]

_POINTWISE = ConvolutionDescriptor.make(1)


def _forward(
    casts: bool, relu: bool, x: TensorDescriptor, w: TensorDescriptor, bias: TensorDescriptor | None = None
) -> Operation:
    """(x, w, bias) -> y, and w where it is cast.

    A bias is added, and the ReLU taken, in one launch, a convolution of single places; or the bias is written before the product by
    a launch of its own, and the ReLU is one behind it: whichever is faster.
    """
    draft, w_at, bias_at = Draft(2 if bias is None else 3), 1, 2
    y = TensorDescriptor.packed((*x.shape[:-1], w.shape[0]), x.dtype)
    output = draft.make(y)
    if casts:
        w, w_at = draft.parameter(w, w_at, x.dtype)
    rows, rows_at = draft.rows(x, 0)
    results, _ = draft.rows(y, output)
    product = MatmulProblem(rows, w.transposed(), results)
    behind = (relu_in_place(results, output),) if relu else ()
    along: TensorDescriptor | None = None
    biases: tuple[int, ...] = ()
    apart: tuple[Step, ...]
    if bias is None:
        apart = (Step(product, (rows_at, w_at, output)), *behind)
    else:
        if casts:
            bias, bias_at = draft.parameter(bias, bias_at, x.dtype, x.dtype.compute)
        row = TensorDescriptor(bias.dtype, (1, *bias.shape), (0, *bias.strides))
        along, biases = _with_a_place(row), (bias_at,)
        adding = Step(AddProblem(row, results), (bias_at, output))
        apart = (adding, Step(product, (rows_at, w_at, output), beta=1.0), *behind)
    if len(apart) == 1:
        return draft.operation(apart)
    images, filters, planes = (_with_a_place(tensor) for tensor in (rows, w, results))
    fused = FusedConvolutionProblem(images, filters, planes, _POINTWISE, bias=along, activation=RELU if relu else None)
    return draft.operation(apart, (Step(fused, (rows_at, w_at, *biases, output)),))


def _with_a_place(matrix: TensorDescriptor) -> TensorDescriptor:
    """[M, C] as [M, C, 1]."""
    return TensorDescriptor(matrix.dtype, (*matrix.shape, 1), (*matrix.strides, 1))


def _backward(
    dtypes: tuple[torch.dtype, torch.dtype],
    wanted: tuple[bool, ...],
    x: TensorDescriptor,
    w: TensorDescriptor,
    dy: TensorDescriptor,
    y: TensorDescriptor | None = None,
) -> Operation:
    """(x, w, dy, y) -> those of dx, dw, db that are wanted, dw and db in these dtypes.

    Args:
        wanted: Of x, w, the settings and, where there is one, the bias.
        y: What the ReLU gave, where there was one.
    """
    of_w = DTYPES[dtypes[0]]
    may_be_wide = wanted[1] and of_w is not dy.dtype and of_w is dy.dtype.compute
    return Operation.any_of(
        _backward_by(dtypes, wanted, wide, x, w, dy, y) for wide in ((False, True) if may_be_wide else (False,))
    )


def _backward_by(
    dtypes: tuple[torch.dtype, torch.dtype],
    wanted: tuple[bool, ...],
    wide: bool,
    x: TensorDescriptor,
    w: TensorDescriptor,
    dy: TensorDescriptor,
    y: TensorDescriptor | None,
) -> Operation:
    """`_backward` with dw stored in the compute type by the product where it is `wide`, as the gradient of a convolution of single
    places may be; else in the dtype of dy, from which a launch casts it where it is wanted otherwise.
    """
    draft = Draft(3 if y is None else 4)
    of_w, of_bias = (DTYPES[dtype] for dtype in dtypes)
    made = [TensorDescriptor.packed(shape, dy.dtype) for shape in (x.shape, w.shape)]
    results = made[0], made[1].with_dtype(of_w), TensorDescriptor.packed(dy.shape[-1:], of_bias)
    dx, dw, db = draft.make_wanted(results, (*wanted[:2], *(wanted[3:] or (False,))))
    seed, seed_at = draft.rows(*((dy, 2) if y is None else draft.relu_gradient(y, 3, dy, 2)))
    if dx is not None:
        draft.step(MatmulProblem(seed, w, draft.rows(made[0], dx)[0]), seed_at, 1, dx)
    if dw is not None:
        rows, rows_at = draft.rows(x, 0)
        if wide:
            images, filters, planes = (_with_a_place(tensor) for tensor in (rows, results[1], seed))
            problem = ConvolutionProblem(Direction.BACKWARD_FILTER, images, filters, planes, _POINTWISE)
            draft.step(problem, rows_at, seed_at, dw)
        else:
            draft.compute(dw, MatmulProblem(seed.transposed(), rows, made[1]), seed_at, rows_at)
    if db is not None:
        row = TensorDescriptor.packed((1, dy.shape[-1]), sum_dtype(dy.dtype, of_bias))
        draft.compute(db, SumProblem(seed, row), seed_at)
    return draft.operation()


_Settings = tuple[tuple[bool, bool], int | None]
"""Whether parameters are cast and whether a ReLU follows, and who calls (`operate`)."""


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, settings: _Settings, bias: Tensor | None = None) -> Tensor:
        how, caller = settings
        found = operate(_forward, how, (x, w) if bias is None else (x, w, bias), caller)
        of_w = w.dtype
        saved = w if of_w is x.dtype else found[1]
        if how[1]:
            ctx.save_for_backward(x, saved, found[0])
        else:
            ctx.save_for_backward(x, saved)
        ctx.settings = (of_w, of_w if bias is None else bias.dtype), caller
        return found[0]

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dtypes, caller = ctx.settings
        wanted = ctx.needs_input_grad
        x, w, *of_relu = ctx.saved_tensors
        return gradients_of(wanted)((*operate(_backward, (dtypes, wanted), (x, w, dy, *of_relu), caller), None))


class _Link:
    """A linear layer as one of several: settings are this, and whether a ReLU follows. Immutable."""

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:
        """(x, w, bias) -> y, and parameters that are cast, w first."""
        return _forward(casts, settings[1], *given)

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:
        """x, w as the forward had it, dy, and y where a ReLU follows."""
        y = len(given)
        w = y + 1 if casts and is_cast(given[1].dtype, given[0].dtype) else 1
        return (0, w, DY, y) if settings[1] else (0, w, DY)

    def backward(
        self,
        settings: Settings,  # noqa: ARG002 (what is read tells)
        given: Sequence[TensorDescriptor],
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],
    ) -> tuple[Operation, tuple[int, ...]]:
        """Those that are wanted, of parameters in their dtypes."""
        dtypes = TORCH_DTYPES[given[1].dtype], TORCH_DTYPES[given[-1].dtype]
        of = (*wanted[:2], False, *wanted[2:])
        return _backward(dtypes, of, *read), tuple(n for n, is_wanted in enumerate(wanted) if is_wanted)


LINK = _Link()


@breaks_graph
def linear(x: Tensor, w: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """y [..., K] = x [..., C] times the transpose of w [K, C], plus bias [K].

    Args:
        relu: Whether y is max(that, 0): forward and backward one operation, with the same result as one after the other. Of
            floating point.

    Under `torch.autocast` x and w are cast to its dtype, and a bias of float32 is added as it is.
    """
    casts = False
    if maybe_autocast():
        x, casts = autocast(x)
    return _product(x, w, bias, ((casts, relu), id(w)))


def product(x: Tensor, w: Tensor) -> Tensor:
    """As `linear`, in the dtype that the operands have; w is no parameter, but made for the call."""
    return _product(x, w, None, ((False, False), None))


def _product(x: Tensor, w: Tensor, bias: Tensor | None, settings: _Settings) -> Tensor:
    if wants_gradient(x, w, bias):
        apply = _Linear.apply
        y: Tensor = apply(x, w, settings) if bias is None else apply(x, w, settings, bias)
        return y
    how, caller = settings
    return operate(_forward, how, (x, w) if bias is None else (x, w, bias), caller)[0]
