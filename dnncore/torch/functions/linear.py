"""The fully connected layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnncore.problems import AddProblem, MatmulProblem, SumProblem
from dnncore.torch.bridge import describe, launch
from dnncore.torch.functions.formats import autocast
from dnncore.torch.functions.gradients import first_derivative

__all__ = ["linear"]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y = x.new_empty(x.shape[0], w.shape[0])
        beta = 0.0
        if bias is not None:
            row = bias.reshape(1, -1)
            launch(AddProblem(describe(row), describe(y)), (row,), (y,))
            beta = 1.0
        launch(MatmulProblem(describe(x), describe(w.t()), describe(y)), (x, w), (y,), beta=beta)
        ctx.save_for_backward(x, w)
        ctx.has_bias = bias is not None
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = x.new_empty(x.shape)
            launch(MatmulProblem(describe(dy), describe(w), describe(dx)), (dy, w), (dx,))
        if ctx.needs_input_grad[1]:
            dw = w.new_empty(w.shape)
            launch(MatmulProblem(describe(dy.t()), describe(x), describe(dw)), (dy, x), (dw,))
        if ctx.has_bias and ctx.needs_input_grad[2]:
            row = dy.new_empty(1, dy.shape[1])
            launch(SumProblem(describe(dy), describe(row)), (dy,), (row,))
            db = row.reshape(-1)
        return dx, dw, db


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """y [..., K] = x [..., C] times the transpose of w [K, C], plus bias [K].

    Under `torch.autocast` all three are cast to its dtype.
    """
    x, w, bias = autocast(x, w, bias)
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _Linear.apply(rows, w, bias)
    return y.reshape(*x.shape[:-1], w.shape[0])
