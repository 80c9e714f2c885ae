"""Windows, and windows that are chosen by the size of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Value
from dnncore.nn.operators import GlobalPooling, Pooling
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules.shapes import fixed, spread

__all__ = ["RULES"]

_aten = torch.ops.aten


def _max(
    call: Call,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> str:
    ndim = _spatial(x)
    if set(spread(dilation, ndim)) != {1}:
        raise NotSupportedError(f"dilation {list(dilation)} is not 1")
    return _window(call, x, "max", kernel_size, stride, padding, ceil_mode)


def _average(
    call: Call,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> str:
    if divisor_override is not None:
        raise NotSupportedError(f"divisor_override is {divisor_override}")
    mode = "average_include_padding" if count_include_pad else "average_exclude_padding"
    return _window(call, x, mode, kernel_size, stride, padding, ceil_mode)


def _window(
    call: Call,
    x: Value,
    mode: str,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
) -> str:
    ndim = _spatial(x)
    window = spread(kernel_size, ndim)
    steps = spread(stride, ndim) if stride else window
    return call.add(Pooling(mode, window, steps, spread(padding, ndim), ceil_mode), x)


def _adaptive(mode: str, call: Call, x: Value, output_size: Sequence[int]) -> str:
    """Windows of equal extents, where the result's extents divide those of x."""
    ndim = _spatial(x)
    given = [fixed(extent, "a spatial extent") for extent in x.shape[-ndim:]]
    wanted = [fixed(extent, "a spatial extent") for extent in call.shape[-ndim:]]
    if any(extent % parts for extent, parts in zip(given, wanted, strict=True)):
        raise NotSupportedError(f"windows would have several extents: {given} places are no multiple of {wanted}")
    if given == wanted:
        return x.name
    if set(wanted) == {1}:
        return call.add(GlobalPooling(mode), x)
    window = tuple(extent // parts for extent, parts in zip(given, wanted, strict=True))
    return call.add(Pooling("max" if mode == "max" else "average_include_padding", window), x)


def _adaptive_max(call: Call, x: Value, output_size: Sequence[int]) -> tuple[str | None, ...]:
    return _adaptive("max", call, x, output_size), None


def _with_indices(call: Call, x: Value, **settings: Any) -> tuple[str | None, ...]:
    return _max(call, x, **settings), None


def _spatial(x: Value) -> int:
    if not 3 <= len(x.shape) <= 5:
        raise NotSupportedError("x must be [N, C, *spatial]")
    return len(x.shape) - 2


RULES: dict[Any, Callable[..., str | tuple[str | None, ...]]] = {
    _aten.adaptive_avg_pool1d.default: partial(_adaptive, "average"),
    _aten.adaptive_avg_pool2d.default: partial(_adaptive, "average"),
    _aten.adaptive_avg_pool3d.default: partial(_adaptive, "average"),
    _aten.adaptive_max_pool1d.default: _adaptive_max,
    _aten.adaptive_max_pool2d.default: _adaptive_max,
    _aten.adaptive_max_pool3d.default: _adaptive_max,
    _aten.avg_pool1d.default: _average,
    _aten.avg_pool2d.default: _average,
    _aten.avg_pool3d.default: _average,
    _aten.max_pool1d.default: _max,
    _aten.max_pool2d.default: _max,
    _aten.max_pool2d_with_indices.default: _with_indices,
    _aten.max_pool3d.default: _max,
    _aten.max_pool3d_with_indices.default: _with_indices,
}
"""By operator."""
