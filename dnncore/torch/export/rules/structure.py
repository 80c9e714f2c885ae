"""What moves elements without computing: other shapes, other orders, parts, several as one, borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Extent, Value
from dnncore.nn.operators import Cast, Concat, Expand, Pad, Slice, Split, Transpose
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules.shapes import axis_of, fixed, reshaped

__all__ = ["RULES"]

_aten = torch.ops.aten


def _same(call: Call, x: Value, **_how: Any) -> str:
    """x itself, or of bool 0 and 1: everything else is float32."""
    dtype = call.result.dtype
    return x.name if x.dtype is dtype else call.add(Cast(dtype.value), x)


def _reshape(call: Call, x: Value, **_how: Any) -> str:
    """PyTorch knows the result's shape."""
    return reshaped(call, x, call.shape, part="")


def _permute(call: Call, x: Value, dims: Sequence[int]) -> str:
    return call.add(Transpose(tuple(axis_of(dim, x) for dim in dims)), x)


def _transpose(call: Call, x: Value, dim0: int, dim1: int) -> str:
    order = list(range(len(x.shape)))
    a, b = axis_of(dim0, x), axis_of(dim1, x)
    order[a], order[b] = order[b], order[a]
    return call.add(Transpose(tuple(order)), x)


def _matrix_transpose(call: Call, x: Value) -> str:
    return x.name if len(x.shape) < 2 else call.add(Transpose((1, 0)), x)


def _expand(call: Call, x: Value, size: Sequence[Extent], implicit: bool = False) -> str:
    """x broadcast; to the number of images only in front."""
    if x.shape == call.shape:
        return x.name
    have = (*(1,) * (len(call.shape) - len(x.shape)), *x.shape)
    wanted = tuple(1 if a == b else b for a, b in zip(have, call.shape, strict=True))
    if not isinstance(wanted[0], str):
        return call.add(Expand(tuple(fixed(extent, "the shape") for extent in wanted)), x)
    if wanted[0] != "N":
        raise NotSupportedError(f"x is repeated {wanted[0]} times, which is not the number of images")
    return call.add(Expand(tuple(fixed(extent, "the shape") for extent in wanted[1:])), x, call.images())


def _concat(call: Call, x: Sequence[Value], dim: int) -> str:
    return call.add(Concat(axis_of(dim, call.shape)), *x)


def _split(call: Call, x: Value, dim: int = 0, **_how: Any) -> tuple[str | None, ...]:
    """PyTorch knows the parts' extents."""
    axis = axis_of(dim, x)
    sizes = [fixed(part.shape[axis], "the size of a part") for part in call.results if part is not None]
    if len(sizes) == 1:
        return (x.name,)
    return call.add_several(Split(tuple(sizes), axis), x)


def _unbind(call: Call, x: Value, dim: int) -> tuple[str | None, ...]:
    axis = axis_of(dim, x)
    count = fixed(x.shape[axis], "the number of parts")
    kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    parts = call.add_several(Split((1,) * count, axis), x, part="split")
    return tuple(reshaped(call, part, call.shape, kept) for part in parts)


def _slice(call: Call, x: Value, dim: int, start: int | None, end: int | None, step: int) -> str:
    axis = axis_of(dim, x)
    if x.shape == call.shape:
        return x.name
    extent = fixed(x.shape[axis], "the extent that is cut")
    if any(isinstance(limit, str) for limit in (start, end)):
        raise NotSupportedError(f"elements {start} to {end} depend on the number of images")
    first, behind, _ = slice(start, end).indices(extent)
    return call.add(Slice(axis, first, max(first, behind), step), x)


def _select(call: Call, x: Value, dim: int, index: int) -> str:
    axis = axis_of(dim, x)
    extent = fixed(x.shape[axis], "the extent that is cut")
    first = index + extent if index < 0 else index
    y = call.add(Slice(axis, first, first + 1), x, part="slice")
    return reshaped(call, y, call.shape, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def _roll(call: Call, x: Value, shifts: Sequence[int], dims: Sequence[int]) -> str:
    """Along each dimension the last elements in front of the others."""
    if not dims:
        raise NotSupportedError("dimensions must be named")
    y = x.name
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, x)
        extent = fixed(x.shape[axis], "the extent that is rolled")
        if shift % extent:
            cut = extent - shift % extent
            front, back = call.add_several(Split((cut, extent - cut), axis), y, part="split")
            y = call.add(Concat(axis), back, front)
    return y


def _pad(call: Call, x: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> str:
    """Places before and after, for the last dimension first."""
    if mode != "constant" or min(pad, default=0) < 0:
        raise NotSupportedError(f"padding {list(pad)} of mode {mode!r}")
    if not any(pad):
        return x.name
    pairs = [(pad[place], pad[place + 1]) for place in range(0, len(pad), 2)]
    padding = (*((0, 0),) * (len(x.shape) - len(pairs)), *reversed(pairs))
    return call.add(Pad(padding, float(value or 0)), x)


def _repeat(call: Call, x: Value, repeats: Sequence[Extent]) -> str:
    """x several times, one behind the other."""
    y = reshaped(call, x, (*(1,) * (len(repeats) - len(x.shape)), *x.shape))
    for axis, count in enumerate(repeats):
        times = fixed(count, "the number of repetitions")
        y = call.add(Concat(axis), *[y] * times) if times != 1 else y
    return y


RULES: dict[Any, Callable[..., str | tuple[str | None, ...]]] = {
    _aten._to_copy.default: _same,
    _aten._unsafe_view.default: _reshape,
    _aten.alias.default: _same,
    _aten.cat.default: _concat,
    _aten.clone.default: _same,
    _aten.constant_pad_nd.default: _pad,
    _aten.detach.default: _same,
    _aten.expand.default: _expand,
    _aten.pad.default: _pad,
    _aten.permute.default: _permute,
    _aten.repeat.default: _repeat,
    _aten.roll.default: _roll,
    _aten.select.int: _select,
    _aten.slice.Tensor: _slice,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.squeeze.default: _reshape,
    _aten.squeeze.dim: _reshape,
    _aten.squeeze.dims: _reshape,
    _aten.t.default: _matrix_transpose,
    _aten.transpose.int: _transpose,
    _aten.unbind.int: _unbind,
    _aten.unsqueeze.default: _reshape,
    _aten.view.default: _reshape,
}
"""By operator."""
