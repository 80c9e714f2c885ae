"""Depthwise convolution: with nine products an element it is the memory that limits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.measurement import Measurement, Sized
from dnncore import ConvolutionDescriptor, DType, TensorDescriptor
from dnncore.descriptors import Layout
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["depthwise"]

_LAYERS = (
    ((64, 128, 112, 112), 3, 1),
    ((64, 128, 112, 112), 3, 2),
    ((64, 384, 28, 28), 5, 1),
    ((64, 768, 14, 14), 7, 1),
)
"""Shape, filter and stride, as MobileNet, EfficientNet and ConvNeXt have them; half the filter is padding."""


def _gradient(stride: int, padding: int, channels: int, which: int) -> Any:
    def run(first: torch.Tensor, second: torch.Tensor, unread: torch.Tensor) -> Any:
        x, w, dy = (unread, first, second) if which == 0 else (first, unread, second)
        mask = [which == 0, which == 1, False]
        geometry = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], channels, mask)
        return torch.ops.aten.convolution_backward(dy, x, w, None, *geometry)[which]

    return run


def _like(tensor: TensorDescriptor) -> Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]:
    """What a gradient does not read, but PyTorch wants for its shape."""

    def kept(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        first = inputs[0]
        return (torch.empty_strided(tensor.shape, tensor.strides, dtype=first.dtype, device=first.device),)

    return kept


def depthwise(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """All three directions in both layouts."""
    for whole, extent, stride in _LAYERS:
        shape = sized(whole)
        channels = shape[1]
        conv = ConvolutionDescriptor.make(stride=stride, padding=extent // 2, groups=channels)
        for layout in (Layout.NCHW, Layout.NHWC):
            x = TensorDescriptor.packed(shape, dtype, layout)
            w = TensorDescriptor.packed((channels, 1, extent, extent), dtype)
            y = TensorDescriptor.packed(conv.output_shape(x.shape, w.shape), dtype, layout)
            name = f"{extent}x{extent}-stride-{stride} {layout.value} {whole[2]}"
            yield Measurement(
                f"depthwise-forward {name}",
                ConvolutionProblem(Direction.FORWARD, x, w, y, conv),
                (x, y),
                lambda x, w, s=stride, p=extent // 2, c=channels: torch.nn.functional.conv2d(x, w, None, s, p, 1, c),
            )
            for direction, which in ((Direction.BACKWARD_DATA, 0), (Direction.BACKWARD_FILTER, 1)):
                gradient = _gradient(stride, extent // 2, channels, which)
                yield Measurement(
                    f"depthwise-{direction.value} {name}",
                    ConvolutionProblem(direction, x, w, y, conv),
                    (x, y),
                    gradient,
                    kept=_like(x if which == 0 else w),
                    length=y.size // channels if which else extent**2,
                )
