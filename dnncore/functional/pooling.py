"""Maxima and averages under a window, and averages over a grid of windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, overload

from dnncore.descriptors import PoolingDescriptor, PoolingMode, TensorDescriptor
from dnncore.descriptors.settings import each, whole
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.formats import new, without_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.functional.shapes import Extents, image
from dnncore.problems import PoolingForwardProblem
from dnncore.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]


def _pooled(
    given: TensorDescriptor,
    x: TensorDescriptor,
    pooling: PoolingDescriptor,
    alpha: float = 1.0,
    *,
    indices: bool = False,
) -> Operation:
    """x -> y, and indices."""
    y = new(pooling.output_shape(x.shape), x)
    places = new(y.shape, x, dtype=DType.INT32) if indices else None
    results = [one for one in (y, places) if one is not None]
    draft = Draft(1, *(results if x is given else map(without_leading, results)))
    draft.step(PoolingForwardProblem(x, y, pooling, places), 0, *draft.results, alpha=alpha)
    return draft.operation()


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
    if set(each(dilation, ndim, "dilation")) != {1}:
        raise BadParamError(f"dilation {dilation} of a maximum is not supported; only 1 is")
    pooling = PoolingDescriptor.make(
        PoolingMode.MAX, kernel_size, spatial_ndim=ndim, padding=padding, stride=stride, ceil_mode=ceil_mode
    )
    return _pooled(given, image(given, ndim), pooling, indices=return_indices)


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
        dilation: 1; others are refused.
        ceil_mode: Round the output extent up, unless the last window would start in the padding behind the input.
        return_indices: Return (y, indices), int32: the place of each maximum among those of x[n, c], in row-major order.
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
    return _pooled(given, image(given, ndim), pooling, alpha)


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


@remembered
def _adaptive(ndim: int, output_size: int | Sequence[int | None], given: TensorDescriptor) -> Operation:
    x = image(given, ndim)
    sizes = (output_size,) * ndim if isinstance(output_size, int) else tuple(output_size)
    if len(sizes) != ndim:
        raise BadParamError(f"output_size {output_size} must be one number or {ndim}, one a spatial dimension")
    extents = x.shape[2:]
    counts = [
        extent if size is None else whole(size, "output_size") for extent, size in zip(extents, sizes, strict=True)
    ]
    moves = [_window(extent, count) for extent, count in zip(extents, counts, strict=True)]
    window, stride = [size for size, _ in moves], [step for _, step in moves]
    pooling = PoolingDescriptor.make(PoolingMode.AVERAGE_INCLUDE_PADDING, window, spatial_ndim=ndim, stride=stride)
    return _pooled(given, x, pooling)


def _window(extent: int, count: int) -> tuple[int, int]:
    """(window, stride) of `count` windows that cover an extent; window i is floor(i e / n) to ceil((i + 1) e / n)."""
    if count < 1:
        raise BadParamError(f"output_size {count} must be 1 or more")
    starts = [i * extent // count for i in range(count)]
    windows = {-(-(i + 1) * extent // count) - start for i, start in enumerate(starts)}
    strides = {after - before for before, after in itertools.pairwise(starts)} or {extent}
    if len(windows) > 1 or len(strides) > 1 or 0 in strides | windows:
        raise BadParamError(
            f"{count} adaptive windows over an extent of {extent} differ in size or stride, which is not supported; they are alike "
            "where one number divides the other"
        )
    return windows.pop(), strides.pop()


def adaptive_avg_pool1d(input: Operand, output_size: int | Sequence[int | None]) -> Tensor:
    """Averages of x [N, C, L] under `output_size` windows that cover it; otherwise as `adaptive_avg_pool2d`."""
    return compute(_adaptive, (1, output_size), input)[0]


def adaptive_avg_pool2d(input: Operand, output_size: int | Sequence[int | None]) -> Tensor:
    """Averages of x [N, C, H, W] under P x Q windows that cover it: y [N, C, P, Q].

    Args:
        input: [N, C, H, W], or [C, H, W].
        output_size: (P, Q), or one number for both; None keeps the input's extent.

    Raises:
        BadParamError: also where windows would differ in size or stride.
    """
    return compute(_adaptive, (2, output_size), input)[0]


def adaptive_avg_pool3d(input: Operand, output_size: int | Sequence[int | None]) -> Tensor:
    """Averages of x [N, C, D, H, W] under `output_size` windows that cover it; otherwise as `adaptive_avg_pool2d`."""
    return compute(_adaptive, (3, output_size), input)[0]
