"""Maxima and averages under a window, and over a grid of windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal, overload

from dnncore.descriptors import PoolingDescriptor, PoolingMode, TensorDescriptor
from dnncore.descriptors.settings import each, whole
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.formats import new, without_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.functional.shapes import Extents, image
from dnncore.functional.windows import Placed, Windows, adaptive_windows, average_along, dilated_windows, maximum_along
from dnncore.problems import AddProblem, PoolingForwardProblem
from dnncore.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
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
    return _pooled(given, image(given, ndim), pooling, indices=return_indices)


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
    return _separately(given, x, counts, windows, maximum_along, x.dtype)


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
def _adaptive(
    mode: PoolingMode,
    ndim: int,
    output_size: int | Sequence[int | None],
    return_indices: bool,
    given: TensorDescriptor,
) -> Operation:
    """x -> y, and indices."""
    x = image(given, ndim)
    sizes = (output_size,) * ndim if isinstance(output_size, int) else tuple(output_size)
    if len(sizes) != ndim:
        raise BadParamError(f"output_size {output_size} must be one number or {ndim}, one for each spatial dimension")
    extents = x.shape[2:]
    counts = [
        extent if size is None else whole(size, "output_size") for extent, size in zip(extents, sizes, strict=True)
    ]
    windows = [_adaptive_windows(extent, count) for extent, count in zip(extents, counts, strict=True)]
    moves = [_alike(each) for each in windows]
    alike = [move for move in moves if move is not None]
    if len(alike) == ndim:
        window, stride = [size for size, _ in alike], [step for _, step in alike]
        return _pooled(
            given, x, PoolingDescriptor.make(mode, window, spatial_ndim=ndim, stride=stride), indices=return_indices
        )
    if return_indices:
        raise BadParamError(
            f"return_indices is True, but {counts} adaptive windows over {list(extents)} differ in size or stride: their maxima "
            "are computed one dimension after the other, and where they were is not known"
        )
    apart = [(axis, along) for axis, along in enumerate(windows, start=2) if len(along.each) != x.shape[axis]]
    if mode is PoolingMode.MAX:
        return _separately(given, x, counts, apart, maximum_along, x.dtype)
    return _separately(given, x, counts, apart, average_along, x.dtype.compute)


def _adaptive_windows(extent: int, count: int) -> Windows:
    if count < 1:
        raise BadParamError(f"output_size {count} must be 1 or more")
    if extent < 1:
        raise BadParamError(f"output_size {count} over an extent of 0: a window has nothing in it")
    return adaptive_windows(extent, count)


def _alike(windows: Windows) -> tuple[int, int] | None:
    """(extent, stride) of windows that a pooling kernel takes; None where they differ in one of the two."""
    starts = [window.start for window in windows.each]
    sizes = {window.taps for window in windows.each}
    strides = {after - before for before, after in itertools.pairwise(starts)} or sizes
    if len(sizes) > 1 or len(strides) > 1 or 0 in strides:
        return None
    return next(iter(sizes)), next(iter(strides))


def _separately(
    given: TensorDescriptor,
    x: TensorDescriptor,
    counts: Sequence[int],
    windows: Sequence[tuple[int, Windows]],
    reduce: Callable[[Draft, int, Windows, Placed, Placed], None],
    dtype: DType,
) -> Operation:
    """x -> y, reduced along one dimension after the other, in between in another dtype; rounded once, at the end.

    Args:
        given: What the caller gave.
        x: The same with a batch dimension.
        counts: The spatial extents of y.
        windows: The dimensions that are reduced, and how.
        reduce: By what.
        dtype: Of what is in between.
    """
    if not x.dtype.is_floating:
        raise BadParamError(
            f"input is {x.dtype.value}; a floating-point dtype is needed for windows that differ in size or stride, or are dilated"
        )
    y = new((*x.shape[:2], *counts), x)
    draft = Draft(1, y if x is given else without_leading(y))
    (result,) = draft.results
    seen, shape = (0, x), list(x.shape)
    if not y.size:
        return draft.operation()
    for axis, along in windows:
        shape[axis] = len(along.each)
        made = new(shape, x, dtype=dtype)
        is_last = axis == windows[-1][0] and dtype is x.dtype
        target = result if is_last else draft.scratch(made), made
        reduce(draft, axis, along, seen, target)
        seen = target
    if dtype is not x.dtype:
        draft.step(AddProblem(seen[1], y), seen[0], result)
    return draft.operation()


def adaptive_avg_pool1d(input: Operand, output_size: int | Sequence[int | None]) -> Tensor:
    """Averages of x [N, C, L] under `output_size` windows that cover it; otherwise as `adaptive_avg_pool2d`."""
    return compute(_adaptive, (PoolingMode.AVERAGE_INCLUDE_PADDING, 1, output_size, False), input)[0]


def adaptive_avg_pool2d(input: Operand, output_size: int | Sequence[int | None]) -> Tensor:
    """Averages of x [N, C, H, W] under P x Q windows that cover it: y [N, C, P, Q].

    Args:
        input: [N, C, H, W], or [C, H, W].
        output_size: (P, Q), or one number for both; None keeps the input's extent.

    Window i of P goes from i H / P, rounded down, to (i + 1) H / P, rounded up. Where windows are alike, as they are where P
    divides H, they are those of `avg_pool2d`. Else averages are taken along one dimension after the other, in the compute type,
    by a launch for each kind of window: P over the greatest common divisor of P and H.
    """
    return compute(_adaptive, (PoolingMode.AVERAGE_INCLUDE_PADDING, 2, output_size, False), input)[0]


def adaptive_avg_pool3d(input: Operand, output_size: int | Sequence[int | None]) -> Tensor:
    """Averages of x [N, C, D, H, W] under `output_size` windows that cover it; otherwise as `adaptive_avg_pool2d`."""
    return compute(_adaptive, (PoolingMode.AVERAGE_INCLUDE_PADDING, 3, output_size, False), input)[0]


def _adaptive_max_pool(input: Operand, *settings: object) -> Tensor | tuple[Tensor, Tensor]:
    results = compute(_adaptive, (PoolingMode.MAX, *settings), input)
    return results[0] if len(results) == 1 else (results[0], results[1])


@overload
def adaptive_max_pool1d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: Literal[False] = False
) -> Tensor: ...


@overload
def adaptive_max_pool1d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: Literal[True]
) -> tuple[Tensor, Tensor]: ...


def adaptive_max_pool1d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Maxima of x [N, C, L] under `output_size` windows that cover it; otherwise as `adaptive_max_pool2d`."""
    return _adaptive_max_pool(input, 1, output_size, return_indices)


@overload
def adaptive_max_pool2d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: Literal[False] = False
) -> Tensor: ...


@overload
def adaptive_max_pool2d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: Literal[True]
) -> tuple[Tensor, Tensor]: ...


def adaptive_max_pool2d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Maxima of x [N, C, H, W] under the windows of `adaptive_avg_pool2d`: y [N, C, P, Q]; NaN where one is.

    Args:
        input: [N, C, H, W], or [C, H, W].
        output_size: (P, Q), or one number for both; None keeps the input's extent.
        return_indices: Return (y, indices) as `max_pool2d` does; only of windows that are alike.

    Raises:
        BadParamError: also where indices are asked for and windows differ in size or stride.
    """
    return _adaptive_max_pool(input, 2, output_size, return_indices)


@overload
def adaptive_max_pool3d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: Literal[False] = False
) -> Tensor: ...


@overload
def adaptive_max_pool3d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: Literal[True]
) -> tuple[Tensor, Tensor]: ...


def adaptive_max_pool3d(
    input: Operand, output_size: int | Sequence[int | None], return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Maxima of x [N, C, D, H, W] under `output_size` windows that cover it; otherwise as `adaptive_max_pool2d`."""
    return _adaptive_max_pool(input, 3, output_size, return_indices)
