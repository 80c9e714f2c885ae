"""Maximum and average pooling."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dnncore.descriptors import PoolingDescriptor, PoolingMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem
from dnncore.torch.bridge import operate
from dnncore.torch.functions.formats import is_channels_last, new, wants_gradient
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.functions.linear import product
from dnncore.torch.operation import Operation

__all__ = ["adaptive_avg_pool", "avg_pool", "max_pool"]


def _pooled(pooling: PoolingDescriptor, x: TensorDescriptor) -> Operation:
    """x -> y."""
    y = new(pooling.output_shape(x.shape), x)
    return Operation.of(PoolingForwardProblem(x, y, pooling), (0, 1), y)


def _max_pooled(pooling: PoolingDescriptor, x: TensorDescriptor) -> Operation:
    """x -> y, and where each maximum was."""
    y = new(pooling.output_shape(x.shape), x)
    indices = TensorDescriptor(DType.INT32, y.shape, y.strides)
    return Operation.of(PoolingForwardProblem(x, y, pooling, indices), (0, 1, 2), y, indices)


def _max_gradient(
    pooling: PoolingDescriptor, shape: tuple[int, ...], indices: TensorDescriptor, dy: TensorDescriptor
) -> Operation:
    """(indices, dy) -> dx."""
    dx = new(shape, dy)
    return Operation.of(PoolingBackwardIndicesProblem(dy, indices, dx, pooling), (1, 0, 2), dx)


def _average_gradient(pooling: PoolingDescriptor, shape: tuple[int, ...], dy: TensorDescriptor) -> Operation:
    """dy -> dx; that of an average does not depend on x and y, which are not read: dx and dy stand in for them."""
    dx = new(shape, dy)
    return Operation.of(PoolingBackwardProblem(dy, dy, dx, dx, pooling), (0, 0, 1, 1), dx)


class _MaxPool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pooling: PoolingDescriptor) -> Tensor:
        y, indices = operate(_max_pooled, (pooling,), (x,))
        ctx.save_for_backward(indices)
        ctx.settings = pooling, x.shape
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (dx,) = operate(_max_gradient, ctx.settings, (*ctx.saved_tensors, dy))
        return dx, None


def max_pool(x: Tensor, pooling: PoolingDescriptor) -> Tensor:
    """The maximum of x [N, C, *input] under each window; the gradient goes to the first of equal maxima."""
    if pooling.mode is not PoolingMode.MAX:
        raise BadParamError(f"max_pool is given {pooling.mode.value}; call avg_pool")
    if wants_gradient(x):
        y: Tensor = _MaxPool.apply(x, pooling)
        return y
    return operate(_pooled, (pooling,), (x,))[0]


class _AvgPool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pooling: PoolingDescriptor) -> Tensor:
        (y,) = operate(_pooled, (pooling,), (x,))
        ctx.settings = pooling, x.shape
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (dx,) = operate(_average_gradient, ctx.settings, (dy,))
        return dx, None


def avg_pool(x: Tensor, pooling: PoolingDescriptor) -> Tensor:
    """The average of x [N, C, *input] under each window, with or without the padding in the divisor."""
    if pooling.mode is PoolingMode.MAX:
        raise BadParamError("avg_pool is given max; call max_pool")
    if wants_gradient(x):
        y: Tensor = _AvgPool.apply(x, pooling)
        return y
    return operate(_pooled, (pooling,), (x,))[0]


def adaptive_avg_pool(x: Tensor, output_size: tuple[int | None, ...]) -> Tensor:
    """The averages of x [N, C, *input] over windows that cover it, as many as `output_size` says; None keeps an extent.

    Window i of n goes from i input / n, rounded down, to (i + 1) input / n, rounded up. Where each n divides its extent, all
    windows are alike, which is `avg_pool`. Elsewhere their extents differ and some overlap, which no pooling kernel does. But an
    average over several dimensions is one after the other, and along one dimension a product with the matrix of the places'
    shares. Shares of 16 bits would not keep a constant: such tensors are averaged in float32.
    """
    pooling = _even_windows(x.shape[2:], output_size)
    if pooling is not None:
        return avg_pool(x, pooling)
    y = x if x.dtype is torch.float64 else x.float()
    for axis, count in enumerate(output_size, start=2):
        if count is not None and count != x.shape[axis]:
            y = product(y.movedim(axis, -1), _shares(x.shape[axis], count, y)).movedim(-1, axis)
    last = {4: torch.channels_last, 5: torch.channels_last_3d} if is_channels_last(x.shape, x.stride()) else {}
    return y.to(x.dtype).contiguous(memory_format=last.get(x.dim(), torch.contiguous_format))


@lru_cache(maxsize=256)
def _even_windows(extents: tuple[int, ...], output_size: tuple[int | None, ...]) -> PoolingDescriptor | None:
    """Windows of one extent that touch; None where they would not fit."""
    if len(extents) != len(output_size):
        raise BadParamError(
            f"x has {len(extents)} spatial dimensions, but output_size {output_size} {len(output_size)}"
        )
    counts = [extent if count is None else count for extent, count in zip(extents, output_size, strict=True)]
    if any(extent % count for extent, count in zip(extents, counts, strict=True)):
        return None
    window = [extent // count for extent, count in zip(extents, counts, strict=True)]
    return PoolingDescriptor.make(PoolingMode.AVERAGE_INCLUDE_PADDING, window, spatial_ndim=len(window))


def _shares(extent: int, count: int, reference: Tensor) -> Tensor:
    """[count, extent]: the share of each place in each window's average, made where it is used, in the order of its stream."""
    window = torch.arange(count, device=reference.device).unsqueeze(1)
    start, end = window * extent // count, ((window + 1) * extent + count - 1) // count
    place = torch.arange(extent, device=reference.device)
    return ((place >= start) & (place < end)).to(reference.dtype) / (end - start)
