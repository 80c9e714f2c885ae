"""Convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dnncore.nn.graph import Value
from dnncore.nn.operators import Binary, Convolution, ConvolutionBackwardData, TransposedConvolution
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules.shapes import fixed, reshaped, spread

__all__ = ["RULES"]

_aten = torch.ops.aten


def _convolution(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
) -> str:
    ndim = len(weight.shape) - 2
    steps = spread(dilation, ndim)
    if padding == "same":  # where it is uneven, PyTorch has one more behind
        spans = [fixed(k, "the kernel") * d - d for k, d in zip(weight.shape[2:], steps, strict=True)]
        places: tuple[Any, ...] = tuple((span // 2, span - span // 2) for span in spans)
    else:
        places = (0,) * ndim if isinstance(padding, str) else spread(padding, ndim)
    return call.add(Convolution(spread(stride, ndim), places, steps, groups), x, weight, bias)


def _transposed(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],  # as much less padding behind
    groups: int,
    dilation: Sequence[int],
) -> str:
    """The adjoint of a convolution, whose weight is [C, K/G, *kernel]; as a gradient where padding would be negative."""
    ndim = len(weight.shape) - 2
    places, more = spread(padding, ndim), spread(output_padding, ndim)
    if all(behind <= place for place, behind in zip(places, more, strict=True)):
        pairs = tuple((place, place - behind) for place, behind in zip(places, more, strict=True))
        operator = TransposedConvolution(spread(stride, ndim), pairs, spread(dilation, ndim), groups)
        return call.add(operator, x, weight, bias)
    spatial = tuple(fixed(extent, "the result") for extent in call.shape[2:])
    settings = (spread(stride, ndim), places, spread(dilation, ndim), groups)
    y = call.add(ConvolutionBackwardData(*settings, spatial=spatial), weight, x)
    return y if bias is None else call.add(Binary("add"), y, reshaped(call, bias, (-1, *(1,) * ndim)), part="sum")


def _either(call: Call, transposed: bool, output_padding: Sequence[int], **rest: Any) -> str:
    """PyTorch's operator for both."""
    return _transposed(call, output_padding=output_padding, **rest) if transposed else _convolution(call, **rest)


RULES: dict[Any, Callable[..., str]] = {
    _aten.conv1d.default: _convolution,
    _aten.conv1d.padding: _convolution,
    _aten.conv2d.default: _convolution,
    _aten.conv2d.padding: _convolution,
    _aten.conv3d.default: _convolution,
    _aten.conv3d.padding: _convolution,
    _aten.conv_transpose1d.default: _transposed,
    _aten.conv_transpose2d.input: _transposed,
    _aten.conv_transpose3d.input: _transposed,
    _aten.convolution.default: _either,
}
"""By operator."""
