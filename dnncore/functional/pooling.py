"""Maxima and averages under a window that moves."""

from __future__ import annotations

import math
from typing import Literal, overload

from dnncore.descriptors import PoolingDescriptor, PoolingMode, TensorDescriptor
from dnncore.descriptors.settings import each
from dnncore.errors import BadParamError
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Operation, remembered
from dnncore.functional.pooled import pooled, separately
from dnncore.functional.shapes import Extents, image
from dnncore.functional.windows import dilated_windows, maximum_along
from dnncore.tensor import Tensor

__all__ = [
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]


@remembered
def _max(
    ndim: int,
    kernel_size: Extents,
    stride: Extents | None,
    padding: Extents,
    dilation: Extents,
    ceil_mode: bool,
    return_indices: bool,
    given: TensorDescriptor,
) -> Operation:
    taps, apart = each(kernel_size, ndim, "kernel_size"), each(dilation, ndim, "dilation")
    if min(apart) < 1:
        raise BadParamError(f"dilation {dilation} must be 1 or more")
    if any(step > 1 and count > 1 for step, count in zip(apart, taps, strict=True)):
        if return_indices:
            raise BadParamError(
                f"return_indices is True, but dilation is {dilation}: such maxima are computed one dimension after "
                "the other, and where they were is not known"
            )
        return _dilated(taps, taps if stride is None else stride, padding, apart, ceil_mode, given)
    pooling = PoolingDescriptor.make(
        PoolingMode.MAX, kernel_size, spatial_ndim=ndim, padding=padding, stride=stride, ceil_mode=ceil_mode
    )
    return pooled(given, image(given, ndim), pooling, indices=return_indices)


def _dilated(
    taps: tuple[int, ...],
    stride: Extents,
    padding: Extents,
    dilation: tuple[int, ...],
    ceil_mode: bool,
    given: TensorDescriptor,
) -> Operation:
    ndim = len(taps)
    x = image(given, ndim)
    reach = [(count - 1) * step + 1 for count, step in zip(taps, dilation, strict=True)]
    pooling = PoolingDescriptor.make(
        PoolingMode.MAX, reach, spatial_ndim=ndim, padding=padding, stride=stride, ceil_mode=ceil_mode
    )
    counts = pooling.output_shape(x.shape)[2:]
    windows = []
    for i, (count, (before, _)) in enumerate(zip(counts, pooling.padding, strict=True)):
        if (taps[i], pooling.stride[i], count) != (1, 1, x.shape[2 + i]):
            along = dilated_windows(x.shape[2 + i], count, taps[i], pooling.stride[i], before, dilation[i])
            windows.append((2 + i, along))
    return separately(given, x, counts, windows, maximum_along, x.dtype)


def _max_pool(input: Operand, *settings: object) -> Tensor | tuple[Tensor, Tensor]:
    results = compute(_max, settings, input)
    return results[0] if len(results) == 1 else (results[0], results[1])


@overload
def max_pool1d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...


@overload
def max_pool1d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def max_pool1d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The maximum of x [N, C, L] under each window, and where it was; otherwise as `max_pool2d`."""
    return _max_pool(input, 1, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@overload
def max_pool2d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...


@overload
def max_pool2d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def max_pool2d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The maximum of x [N, C, H, W] under each window; NaN is the maximum of every window that it is in.

    Args:
        input: [N, C, H, W], or [C, H, W]; floating-point or int8.
        kernel_size: Extents of the window.
        stride: Steps of the window; None for windows that touch.
        padding: Places before and after, which no maximum sees; less than the window.
        dilation: Distance between the places of a window. Where it is not 1, maxima are taken along one dimension after the other,
            of floating-point alone, in several launches: one for all windows within the input and others for those that begin or
            end in the padding.
        ceil_mode: Round the output extent up, unless the last window would start in the padding behind the input.
        return_indices: Return (y, indices), int32: the place of each maximum among those of x[n, c], in row-major order; not with a
            dilation.
    """
    return _max_pool(input, 2, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@overload
def max_pool3d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...


@overload
def max_pool3d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def max_pool3d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The maximum of x [N, C, D, H, W] under each window, and where it was; otherwise as `max_pool2d`."""
    return _max_pool(input, 3, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@remembered
def _average(
    ndim: int,
    kernel_size: Extents,
    stride: Extents | None,
    padding: Extents,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    given: TensorDescriptor,
) -> Operation:
    mode = PoolingMode.AVERAGE_INCLUDE_PADDING
    if not count_include_pad and divisor_override is None:
        mode = PoolingMode.AVERAGE_EXCLUDE_PADDING
    pooling = PoolingDescriptor.make(
        mode, kernel_size, spatial_ndim=ndim, padding=padding, stride=stride, ceil_mode=ceil_mode
    )
    alpha = 1.0
    if divisor_override is not None:
        if ceil_mode or divisor_override == 0:
            raise BadParamError(f"divisor_override {divisor_override} with ceil_mode {ceil_mode} is not supported")
        alpha = math.prod(pooling.window) / divisor_override
    return pooled(given, image(given, ndim), pooling, alpha)


def avg_pool1d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The average of x [N, C, L] under each window; otherwise as `avg_pool2d`."""
    settings = (1, kernel_size, stride, padding, ceil_mode, count_include_pad, None)
    return compute(_average, settings, input)[0]


def avg_pool2d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The average of x [N, C, H, W] under each window.

    Args:
        input: [N, C, H, W], or [C, H, W]; floating-point or int8, whose averages are rounded to even.
        kernel_size: Extents of the window.
        stride: Steps of the window; None for windows that touch.
        padding: Zeros before and after, fewer than the window.
        ceil_mode: Round the output extent up, unless the last window would start in the padding behind the input.
        count_include_pad: Whether padding counts in the divisor.
        divisor_override: Divide by this instead; not with `ceil_mode`.
    """
    settings = (2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return compute(_average, settings, input)[0]


def avg_pool3d(
    input: Operand,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Extents = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The average of x [N, C, D, H, W] under each window; otherwise as `avg_pool2d`."""
    settings = (3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return compute(_average, settings, input)[0]
