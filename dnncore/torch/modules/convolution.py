"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.torch.functions.convolution import LINK, convolution
from dnncore.torch.modules.layer import Link, Linked, TakesRelu, ours, remembered, weight_and_bias

__all__ = ["MODULES"]


@remembered
def _descriptor(
    kernel_size: Sequence[int],
    padding: Any,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> ConvolutionDescriptor:
    ndim = len(kernel_size)
    if padding == "same":
        spans = [step * (extent - 1) for step, extent in zip(dilation, kernel_size, strict=True)]
        around = [(span // 2, span - span // 2) for span in spans]
    elif padding == "valid":
        around = [(0, 0)] * ndim
    else:
        around = [(places, places) for places in padding]
    return ConvolutionDescriptor.make(ndim, padding=around, stride=stride, dilation=dilation, groups=groups)


class _Convolution(TakesRelu, Linked):
    casts = True

    @staticmethod
    def why_not(module: Any) -> str | None:
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode}"
        return None

    def compute(self: Any, x: Tensor) -> Tensor:
        """As PyTorch's."""
        return self._convolve(x, False)

    def forward_relu(self: Any, x: Tensor) -> Tensor:
        """relu(forward(x)) in one operation."""
        return self._convolve(x, True)

    def link(self: Any, relu: bool, dtype: torch.dtype) -> Link:  # noqa: ARG002 (of any)
        """As `compute` or `forward_relu`."""
        conv = _descriptor(self.kernel_size, self.padding, self.stride, self.dilation, self.groups)
        weight, bias = weight_and_bias(self)
        return (LINK, conv, relu), (weight,) if bias is None else (weight, bias), (), None

    def _convolve(self: Any, x: Tensor, relu: bool) -> Tensor:
        kernel_size = self.kernel_size
        conv = _descriptor(kernel_size, self.padding, self.stride, self.dilation, self.groups)
        weight, bias = weight_and_bias(self)
        if x.dim() == len(kernel_size) + 1:
            return convolution(x.unsqueeze(0), weight, bias, conv, relu).squeeze(0)
        return convolution(x, weight, bias, conv, relu)


_BY_NDIM = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
MODULES = {theirs: ours(theirs, _Convolution, linked_ndim=ndim + 2) for ndim, theirs in _BY_NDIM.items()}
