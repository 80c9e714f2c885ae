"""Batch normalisation in training, a residual, and ReLU: one function in place of two or three."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.errors import BadParamError
from dnncore.torch.bridge import operate
from dnncore.torch.functions.batch_norm import gradients, trained, update
from dnncore.torch.functions.formats import parameters_for, wants_gradient
from dnncore.torch.functions.gradients import Function, first_derivative

__all__ = ["batch_norm_relu"]

_RELU = ActivationDescriptor(ActivationMode.RELU)


class _BatchNormRelu(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        settings: tuple[float, float, ActivationDescriptor],
    ) -> Tensor:
        y, both, *_ = operate(trained, settings, (x, weight, bias, *running, residual))
        has_residual = residual is not None
        ctx.save_for_backward(x, weight, None if has_residual else bias, both, y)
        ctx.settings = bias is not None and bias.dtype is x.dtype, settings[-1], has_residual
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight, dbias, *rest = operate(gradients, ctx.settings, (*ctx.saved_tensors, dy))
        needed = ctx.needs_input_grad
        return (
            dx,
            dweight if needed[1] else None,
            dbias if needed[2] else None,
            rest[0] if needed[3] else None,
            None,
            None,
        )


def batch_norm_relu(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    residual: Tensor | None = None,
) -> Tensor:
    """relu(batch_norm(x) + residual) with statistics of the batch, rounded once.

    Args:
        running_mean, running_var: [C]; updated, but not by an empty batch.
        residual: Like x, in shape and dtype; None for 0.

    Parameters and running statistics as `batch_norm` takes them. One after the other, what is in between would be rounded too.
    """
    if residual is not None and (residual.shape != x.shape or residual.dtype is not x.dtype):
        raise BadParamError(
            f"residual is {residual.dtype} {tuple(residual.shape)} but x is {x.dtype} {tuple(x.shape)}; they must be alike"
        )
    scale, offset, mean, variance = parameters_for(x, weight, bias, running_mean, running_var)
    settings = momentum, eps, _RELU
    y: Tensor
    if wants_gradient(x, scale, offset, residual):
        y = _BatchNormRelu.apply(x, scale, offset, residual, (mean, variance), settings)
    else:
        y = operate(trained, settings, (x, scale, offset, mean, variance, residual))[0]
    update(running_mean, mean)
    update(running_var, variance)
    return y
