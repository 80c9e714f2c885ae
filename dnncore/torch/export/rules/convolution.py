"""Convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Value
from dnncore.nn.operators import Binary, Convolution, ConvolutionBackwardData
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
    output_padding: Sequence[int],  # which only says how large the result is
    groups: int,
    dilation: Sequence[int],
) -> str:
    """A convolution's gradient by its input; weight is [C, K/G, *kernel], as that convolution has it."""
    ndim = len(weight.shape) - 2
    if any(
        spread(output_padding, ndim)[i] >= max(spread(stride, ndim)[i], spread(dilation, ndim)[i]) for i in range(ndim)
    ):
        raise NotSupportedError(f"output_padding {output_padding} is not less than the stride or the dilation")
    spatial = tuple(fixed(extent, "the result") for extent in call.shape[2:])
    settings = (spread(stride, ndim), spread(padding, ndim), spread(dilation, ndim), groups)
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
