"""A convolution's three directions, the fused one (convolution, bias and ReLU), and the one of int8 beside our own in fp16."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.kernels.precision import INT8, PRECISIONS, Precision
from benchmarks.layers import LayerGeometry
from benchmarks.measurement import CONTIGUOUS_AND_CHANNELS_LAST, Measurement, Part
from dnncore import RELU, DType, TensorDescriptor
from dnncore.descriptors import Layout
from dnncore.problems import Direction, FusedConvolutionProblem

__all__ = ["DIRECTIONS", "convolution", "int8_convolution"]

DIRECTIONS = ("forward", "backward_data", "backward_filter", "fused")

_REFERENCE_MACS = 4 * 10**9
"""Of the part that is computed in float64: what a GPU does in milliseconds."""

_INT8_DEVIATION = 73.9
"""Of numbers that are -128 to 127 with equal probability."""

_WANTED_DEVIATION = 40.0
"""Of int8 results: few are saturated, and few are small."""


class _Geometry:
    """PyTorch's functions of a layer's tensors, and float64's results for parts of them. Immutable."""

    def __init__(self, layer: LayerGeometry) -> None:
        self._layer = layer
        self._moves = [layer.stride] * 2, [layer.padding] * 2, [1, 1]
        self._macs = layer.problem(Direction.FORWARD).macs

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.nn.functional.conv2d(x, w, None, *self._moves, self._layer.groups)
        return result

    def fused(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> Any:
        return torch.cudnn_convolution_relu(x, w, bias.flatten(), *self._moves, self._layer.groups)

    def unread_x(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What backward-data does not read, but PyTorch wants for its shape."""
        _, dy = inputs
        layer = self._layer
        return (_empty((dy.shape[0], layer.c, layer.size, layer.size), dy),)

    def unread_w(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Likewise of backward-filter."""
        x, _ = inputs
        layer = self._layer
        return (_empty((layer.k, layer.c // layer.groups, layer.filter, layer.filter), x),)

    def backward_data(self, w: torch.Tensor, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self._gradient(dy, x, w, 0)

    def backward_filter(self, x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return self._gradient(dy, x, w, 1)

    def _gradient(
        self, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, which: int, groups: int = 0
    ) -> torch.Tensor:
        mask = [which == 0, which == 1, False]
        arguments = (None, *self._moves, False, [0, 0], groups or self._layer.groups, mask)
        result: torch.Tensor = torch.ops.aten.convolution_backward(dy, x, w, *arguments)[which]
        return result

    def part_of_forward(self, inputs: Sequence[torch.Tensor]) -> Part:
        """The first images; with a bias, what is fused too."""
        x, w, *bias = inputs
        images = self._images()
        y = self.forward(x[:images].double(), w.double())
        return (y + bias[0].double()).relu() if bias else y, lambda output: output[:images]

    def part_of_backward_data(self, inputs: Sequence[torch.Tensor]) -> Part:
        """The first images."""
        w, dy = inputs
        images = self._images()
        part = [w.double(), dy[:images].double()]
        return self.backward_data(*part, *self.unread_x(part)), lambda output: output[:images]

    def part_of_backward_filter(self, inputs: Sequence[torch.Tensor]) -> Part:
        """The first filters, of whole groups where there are several."""
        x, dy = inputs
        layer = self._layer
        filters = max(1, layer.k * _REFERENCE_MACS // self._macs)
        if layer.groups > 1:
            groups = min(layer.groups, max(1, filters * layer.groups // layer.k))
            filters, channels = groups * layer.k // layer.groups, groups * layer.c // layer.groups
        else:
            groups, filters, channels = 1, min(filters, layer.k), layer.c
        shape = (filters, layer.c // layer.groups, layer.filter, layer.filter)
        w = torch.empty(shape, dtype=torch.float64, device=x.device)
        dw = self._gradient(dy[:, :filters].double(), x[:, :channels].double(), w, 1, groups)
        return dw, lambda output: output[:filters]

    def _images(self) -> int:
        return min(self._layer.n, max(1, self._layer.n * _REFERENCE_MACS // self._macs))


def _empty(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Of the same kind, and lying the same way."""
    is_last = like.stride(1) == 1 and like.shape[1] > 1
    to = torch.channels_last if is_last else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=to)


def _scaled(place: int) -> Callable[[Sequence[torch.Tensor]], None]:
    """Filters divided by the root of a sum's terms, so that results are as large as inputs."""

    def prepare(inputs: Sequence[torch.Tensor]) -> None:
        w = inputs[place]
        w.mul_(w[0].numel() ** -0.5)

    return prepare


def _unscaled(_inputs: Sequence[torch.Tensor]) -> None:
    """Nothing is a filter."""


def convolution(
    layer: LayerGeometry, direction: str, precision: Precision, fields: Mapping[str, Any] | None = None
) -> Measurement:
    """One direction of a layer beside cuDNN.

    Args:
        layer: Its geometry.
        direction: One of `DIRECTIONS`.
        precision: Element type, layout and maths.
        fields: Of its row, beside layer and direction.
    """
    forward = layer.problem(Direction.FORWARD, precision.dtype, precision.layout, precision.math)
    geometry = _Geometry(layer)
    row = {"layer": layer.name, **(fields or {}), "direction": direction}
    # As ours lie first: it is searched more often.
    formats = CONTIGUOUS_AND_CHANNELS_LAST[:: -1 if precision.layout is Layout.NHWC else 1]
    moved, name = (forward.x, forward.w, forward.y), f"{layer.name} {direction}"
    if direction == "forward":
        return Measurement(
            *(name, forward, moved, geometry.forward),
            prepare=_scaled(1),
            length=forward.macs // forward.y.size,
            reference=geometry.part_of_forward,
            fields=row,
            formats=formats,
            searched=True,
            peer="cudnn",
        )
    if direction == "fused":
        bias = TensorDescriptor.packed((1, layer.k, 1, 1), precision.dtype)
        fused = FusedConvolutionProblem(
            forward.x, forward.w, forward.y, forward.convolution, bias=bias, activation=RELU
        )
        return Measurement(
            *(name, fused, (*moved, bias), geometry.fused),
            prepare=_scaled(1),
            length=forward.macs // forward.y.size,
            reference=geometry.part_of_forward,
            fields=row,
            formats=formats,
            searched=True,
            peer="cudnn",
        )
    way = Direction(direction)
    problem = layer.problem(way, precision.dtype, precision.layout, precision.math)
    is_data = way is Direction.BACKWARD_DATA
    return Measurement(
        *(name, problem, moved, geometry.backward_data if is_data else geometry.backward_filter),
        prepare=_scaled(0) if is_data else _unscaled,
        kept=geometry.unread_x if is_data else geometry.unread_w,
        length=max(1, forward.macs // problem.outputs[0].size),
        reference=geometry.part_of_backward_data if is_data else geometry.part_of_backward_filter,
        fields=row,
        formats=formats,
        searched=True,
        peer="cudnn",
    )


def int8_convolution(layer: LayerGeometry, fields: Mapping[str, Any] | None = None) -> Measurement:
    """Forward in int8 with a scale, int8 results, beside ours in fp16; exact against integers."""
    conv = layer.problem(Direction.FORWARD, DType.FLOAT16, INT8.layout)
    x, w, y = (tensor.with_dtype(DType.INT8) for tensor in (conv.x, conv.w, conv.y))
    scale = TensorDescriptor.packed((1, layer.k, 1, 1), DType.FLOAT32)
    problem = FusedConvolutionProblem(x, w, y, conv.convolution, scale=scale)
    geometry, terms = _Geometry(layer), conv.macs // conv.y.size
    # A power of two: then float32 is exact, and ties are rounded as integers' would be.
    factor = 2.0 ** round(math.log2(_WANTED_DEVIATION / (_INT8_DEVIATION**2 * terms**0.5)))

    def prepare(inputs: Sequence[torch.Tensor]) -> None:
        inputs[2].fill_(factor)

    def reference(inputs: Sequence[torch.Tensor]) -> Part:
        sums, taken = geometry.part_of_forward([one.double() for one in inputs[:2]])
        return (sums * factor).round().clamp(-128, 127), taken

    return Measurement(
        *(f"{layer.name} int8", problem, (x, w, y), None),
        prepare=prepare,
        length=terms,
        reference=reference,
        fields={"layer": layer.name, **(fields or {}), "direction": "forward"},
        rival=convolution(layer, "forward", PRECISIONS["fp16"]),
        peer="fp16",
        exact=True,
    )
