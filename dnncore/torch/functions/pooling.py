"""Maximum and average pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import PoolingDescriptor, PoolingMode
from dnncore.errors import BadParamError
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem
from dnncore.torch.bridge import describe, launch
from dnncore.torch.functions.formats import new
from dnncore.torch.functions.gradients import first_derivative

__all__ = ["avg_pool", "max_pool"]


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pooling: PoolingDescriptor) -> Tensor:
        y = new(x, pooling.output_shape(x.shape))
        indices = torch.empty_like(y, dtype=torch.int32)
        launch(PoolingForwardProblem(describe(x), describe(y), pooling, describe(indices)), (x,), (y, indices))
        ctx.save_for_backward(indices)
        ctx.pooling, ctx.shape = pooling, x.shape
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        dx = new(dy, ctx.shape)
        problem = PoolingBackwardIndicesProblem(describe(dy), describe(indices), describe(dx), ctx.pooling)
        launch(problem, (dy, indices), (dx,))
        return dx, None


def max_pool(x: Tensor, pooling: PoolingDescriptor) -> Tensor:
    """The maximum of x [N, C, *input] under each window; the gradient goes to the first of equal maxima."""
    if pooling.mode is not PoolingMode.MAX:
        raise BadParamError(f"max_pool is given {pooling.mode.value}; call avg_pool")
    y: Tensor = _MaxPool.apply(x, pooling)
    return y


class _AvgPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pooling: PoolingDescriptor) -> Tensor:
        y = new(x, pooling.output_shape(x.shape))
        launch(PoolingForwardProblem(describe(x), describe(y), pooling), (x,), (y,))
        ctx.pooling, ctx.shape = pooling, x.shape
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx = new(dy, ctx.shape)
        # Averages do not depend on x and y: dx and dy stand in for them.
        problem = PoolingBackwardProblem(describe(dy), describe(dy), describe(dx), describe(dx), ctx.pooling)
        launch(problem, (dy, dy, dx.zero_()), (dx,))
        return dx, None


def avg_pool(x: Tensor, pooling: PoolingDescriptor) -> Tensor:
    """The average of x [N, C, *input] under each window, with or without the padding in the divisor."""
    if pooling.mode is PoolingMode.MAX:
        raise BadParamError("avg_pool is given max; call max_pool")
    y: Tensor = _AvgPool.apply(x, pooling)
    return y
