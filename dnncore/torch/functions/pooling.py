"""Maximum and average pooling."""

from __future__ import annotations

from collections.abc import Sequence
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
from dnncore.torch.functions.link import DY, NotLinkedError, Settings, View
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation

__all__ = [
    "ADAPTIVE_LINK",
    "AVERAGE_LINK",
    "MAXIMUM_LINK",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "avg_pool",
    "max_pool",
]


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
        y, indices = operate(_max_pooled, (pooling,), (x,), id(pooling))
        ctx.save_for_backward(indices)
        ctx.settings = pooling, x.shape
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        settings = ctx.settings
        (dx,) = operate(_max_gradient, settings, (*ctx.saved_tensors, dy), id(settings[0]))
        return dx, None


class _MaximumLink:
    """Maximum pooling as one of several layers: settings are this and the pooling. Immutable."""

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:  # noqa: ARG002
        """x -> y, and where each maximum was."""
        return _max_pooled(settings[1], *given)

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:  # noqa: ARG002
        """Where each maximum was, and dy."""
        return len(given) + 1, DY

    def backward(
        self,
        settings: Settings,
        given: Sequence[TensorDescriptor],
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],  # noqa: ARG002 (there is one)
    ) -> tuple[Operation, tuple[int, ...]]:
        """That of x."""
        return _max_gradient(settings[1], given[0].shape, *read), (0,)


MAXIMUM_LINK = _MaximumLink()


@breaks_graph
def max_pool(x: Tensor, pooling: PoolingDescriptor) -> Tensor:
    """The maximum of x [N, C, *input] under each window; the gradient goes to the first of equal maxima."""
    if pooling.mode is not PoolingMode.MAX:
        raise BadParamError(f"max_pool is given {pooling.mode.value}; call avg_pool")
    if wants_gradient(x):
        y: Tensor = _MaxPool.apply(x, pooling)
        return y
    return operate(_pooled, (pooling,), (x,), id(pooling))[0]


class _AvgPool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pooling: PoolingDescriptor) -> Tensor:
        (y,) = operate(_pooled, (pooling,), (x,), id(pooling))
        ctx.settings = pooling, x.shape
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        settings = ctx.settings
        (dx,) = operate(_average_gradient, settings, (dy,), id(settings[0]))
        return dx, None


class _AverageLink:
    """Average pooling as one of several layers: settings are this and the pooling. Immutable."""

    def _pooling(self, settings: Settings, x: TensorDescriptor) -> PoolingDescriptor:  # noqa: ARG002 (for those that depend on it)
        pooling: PoolingDescriptor = settings[1]
        return pooling

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:  # noqa: ARG002
        """x -> y."""
        return _pooled(self._pooling(settings, given[0]), *given)

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:  # noqa: ARG002
        """Dy."""
        return (DY,)

    def backward(
        self,
        settings: Settings,
        given: Sequence[TensorDescriptor],
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],  # noqa: ARG002 (there is one)
    ) -> tuple[Operation, tuple[int, ...]]:
        """That of x."""
        return _average_gradient(self._pooling(settings, given[0]), given[0].shape, *read), (0,)


class _AdaptiveLink(_AverageLink, View):
    """Averages over as many windows as are asked for: settings are this and `output_size`. Immutable."""

    def _pooling(self, settings: Settings, x: TensorDescriptor) -> PoolingDescriptor:
        pooling = _even_windows(PoolingMode.AVERAGE_INCLUDE_PADDING, x.shape[2:], settings[1])
        if pooling is None:
            raise NotLinkedError
        return pooling

    def view(self, settings: Settings, x: TensorDescriptor) -> TensorDescriptor | None:
        """x, where there are as many windows as places, as in AlexNet and VGG at the size that they were made for."""
        return x if set(self._pooling(settings, x).window) == {1} else None

    def gradient(self, settings: Settings, x: TensorDescriptor, dy: TensorDescriptor) -> TensorDescriptor:  # noqa: ARG002
        """Dy."""
        return dy


AVERAGE_LINK, ADAPTIVE_LINK = _AverageLink(), _AdaptiveLink()


@breaks_graph
def avg_pool(x: Tensor, pooling: PoolingDescriptor) -> Tensor:
    """The average of x [N, C, *input] under each window, with or without the padding in the divisor."""
    if pooling.mode is PoolingMode.MAX:
        raise BadParamError("avg_pool is given max; call max_pool")
    if wants_gradient(x):
        y: Tensor = _AvgPool.apply(x, pooling)
        return y
    return operate(_pooled, (pooling,), (x,), id(pooling))[0]


def adaptive_avg_pool(x: Tensor, output_size: tuple[int | None, ...]) -> Tensor:
    """The averages of x [N, C, *input] over windows that cover it, as many as `output_size` says; None keeps an extent.

    Window i of n goes from i input / n, rounded down, to (i + 1) input / n, rounded up. Where each n divides its extent, all
    windows are alike, which is `avg_pool`. Elsewhere their extents differ and some overlap, which no pooling kernel does. But an
    average over several dimensions is one after the other, and along one dimension a product with the matrix of the places'
    shares. Shares of 16 bits would not keep a constant: such tensors are averaged in float32.
    """
    pooling = _even_windows(PoolingMode.AVERAGE_INCLUDE_PADDING, x.shape[2:], output_size)
    if pooling is not None:
        return avg_pool(x, pooling)
    y = x if x.dtype is torch.float64 else x.float()
    for axis, count in enumerate(output_size, start=2):
        if count is not None and count != x.shape[axis]:
            y = product(y.movedim(axis, -1), _shares(x.shape[axis], count, y)).movedim(-1, axis)
    return _laid_out_as(x, y.to(x.dtype))


def adaptive_max_pool(x: Tensor, output_size: tuple[int | None, ...]) -> Tensor:
    """The maxima of x [N, C, *input] over the windows of `adaptive_avg_pool`; the gradient goes to the first of equal maxima.

    Where windows differ, the places of each are written down one behind the other, the last one of a shorter window again, so that
    windows are alike and touch.
    """
    pooling = _even_windows(PoolingMode.MAX, x.shape[2:], output_size)
    if pooling is not None:
        return max_pool(x, pooling)
    y, pooling = x, _longest_windows(x.shape[2:], output_size)
    for axis, (count, longest) in enumerate(zip(output_size, pooling.window, strict=True), start=2):
        if count is not None and count != x.shape[axis]:
            starts, ends = _windows(x.shape[axis], count, x.device)
            places = torch.minimum(starts + torch.arange(longest, device=x.device), ends - 1)
            y = y.index_select(axis, places.flatten())
    return _laid_out_as(x, max_pool(y, pooling))


def _laid_out_as(x: Tensor, y: Tensor) -> Tensor:
    """y, with channels innermost where those of x are."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d} if is_channels_last(x.shape, x.stride()) else {}
    return y.contiguous(memory_format=last.get(x.dim(), torch.contiguous_format))


@lru_cache(maxsize=256)
def _even_windows(
    mode: PoolingMode, extents: tuple[int, ...], output_size: tuple[int | None, ...]
) -> PoolingDescriptor | None:
    """Windows of one extent that touch; None where they would not fit."""
    if len(extents) != len(output_size):
        raise BadParamError(
            f"x has {len(extents)} spatial dimensions, but output_size {output_size} {len(output_size)}"
        )
    counts = [extent if count is None else count for extent, count in zip(extents, output_size, strict=True)]
    if any(extent % count for extent, count in zip(extents, counts, strict=True)):
        return None
    window = [extent // count for extent, count in zip(extents, counts, strict=True)]
    return PoolingDescriptor.make(mode, window, spatial_ndim=len(window))


@lru_cache(maxsize=256)
def _longest_windows(extents: tuple[int, ...], output_size: tuple[int | None, ...]) -> PoolingDescriptor:
    """Maxima over windows that touch, as long as the longest along each dimension."""
    window = [
        1 if count is None else max(-(-(i + 1) * extent // count) - i * extent // count for i in range(count))
        for extent, count in zip(extents, output_size, strict=True)
    ]
    return PoolingDescriptor.make(PoolingMode.MAX, window, spatial_ndim=len(window))


def _windows(extent: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """[count, 1]: where each window begins, and where the next place behind it is; made where used, in the order of its stream."""
    window = torch.arange(count, device=device).unsqueeze(1)
    return window * extent // count, ((window + 1) * extent + count - 1) // count


def _shares(extent: int, count: int, reference: Tensor) -> Tensor:
    """[count, extent]: the share of each place in each window's average."""
    start, end = _windows(extent, count, reference.device)
    place = torch.arange(extent, device=reference.device)
    return ((place >= start) & (place < end)).to(reference.dtype) / (end - start)
