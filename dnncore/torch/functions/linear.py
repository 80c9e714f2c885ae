"""The fully connected layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.problems import AddProblem, FusedConvolutionProblem, MatmulProblem, SumProblem
from dnncore.torch.bridge import operate
from dnncore.torch.functions.draft import Draft
from dnncore.torch.functions.formats import autocast, maybe_autocast, wants_gradient
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.operation import Operation, Step

__all__ = ["linear", "product"]

_POINTWISE = ConvolutionDescriptor.make(1)


def _forward(x: TensorDescriptor, w: TensorDescriptor, bias: TensorDescriptor | None) -> Operation:
    """(x, w, bias) -> y: with a bias in one launch, as a convolution of single places, or after one that writes it first."""
    draft = Draft(3)
    y = TensorDescriptor.packed((*x.shape[:-1], w.shape[0]), x.dtype)
    output = draft.make(y)
    rows, rows_at = draft.rows(x, 0)
    results, _ = draft.rows(y, output)
    product = MatmulProblem(rows, w.transposed(), results)
    if bias is None:
        return draft.operation((Step(product, (rows_at, 1, output)),))
    row = TensorDescriptor(bias.dtype, (1, *bias.shape), (0, *bias.strides))
    two_launches = (
        Step(AddProblem(row, results), (2, output)),
        Step(product, (rows_at, 1, output), beta=1.0),
    )
    images, filters, planes, along = (_with_a_place(tensor) for tensor in (rows, w, results, row))
    fused = FusedConvolutionProblem(images, filters, planes, _POINTWISE, bias=along)
    one_launch = (Step(fused, (rows_at, 1, 2, output)),)
    return draft.operation(two_launches, one_launch)


def _with_a_place(matrix: TensorDescriptor) -> TensorDescriptor:
    """[M, C] as [M, C, 1]."""
    return TensorDescriptor(matrix.dtype, (*matrix.shape, 1), (*matrix.strides, 1))


def _backward(
    wanted: tuple[bool, bool, bool], x: TensorDescriptor, w: TensorDescriptor, dy: TensorDescriptor
) -> Operation:
    """(x, w, dy) -> those of dx, dw, db that are wanted."""
    draft = Draft(3)
    made = [TensorDescriptor.packed(shape, dy.dtype) for shape in (x.shape, w.shape, dy.shape[-1:])]
    dx, dw, db = (draft.make(each) if is_wanted else None for each, is_wanted in zip(made, wanted, strict=True))
    seed, seed_at = draft.rows(dy, 2)
    if dx is not None:
        draft.step(MatmulProblem(seed, w, draft.rows(made[0], dx)[0]), seed_at, 1, dx)
    if dw is not None:
        rows, rows_at = draft.rows(x, 0)
        draft.step(MatmulProblem(seed.transposed(), rows, made[1]), seed_at, rows_at, dw)
    if db is not None:
        row = TensorDescriptor.packed((1, dy.shape[-1]), dy.dtype)
        draft.step(SumProblem(seed, row), seed_at, db)
    return draft.operation()


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y, *_ = operate(_forward, (), (x, w, bias))
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad
        found = iter(operate(_backward, (wanted,), (*ctx.saved_tensors, dy)))
        return tuple(next(found) if is_wanted else None for is_wanted in wanted)


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """y [..., K] = x [..., C] times the transpose of w [K, C], plus bias [K].

    Under `torch.autocast` all three are cast to its dtype.
    """
    if maybe_autocast():
        x, w, bias = autocast(x, w, bias)
    return product(x, w, bias)


def product(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `linear`, in the dtype that the operands have."""
    if wants_gradient(x, w, bias):
        y: Tensor = _Linear.apply(x, w, bias)
        return y
    return operate(_forward, (), (x, w, bias))[0]
