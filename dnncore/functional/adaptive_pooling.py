"""Maxima and averages over a grid of windows that cover the input."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, overload

from dnncore.descriptors import PoolingDescriptor, PoolingMode, TensorDescriptor
from dnncore.descriptors.settings import whole
from dnncore.errors import BadParamError
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Operation, remembered
from dnncore.functional.pooled import pooled, separately
from dnncore.functional.shapes import image
from dnncore.functional.windows import Windows, adaptive_windows, average_along, maximum_along
from dnncore.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
]


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
        return pooled(
            given, x, PoolingDescriptor.make(mode, window, spatial_ndim=ndim, stride=stride), indices=return_indices
        )
    if return_indices:
        raise BadParamError(
            f"return_indices is True, but {counts} adaptive windows over {list(extents)} differ in size or stride: their maxima "
            "are computed one dimension after the other, and where they were is not known"
        )
    apart = [(axis, along) for axis, along in enumerate(windows, start=2) if len(along.each) != x.shape[axis]]
    if mode is PoolingMode.MAX:
        return separately(given, x, counts, apart, maximum_along, x.dtype)
    return separately(given, x, counts, apart, average_along, x.dtype.compute)


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
