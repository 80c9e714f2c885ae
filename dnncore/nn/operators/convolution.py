"""Convolution, with and without what customarily follows it, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.activated import Activated
from dnncore.nn.operators.gradients import ChannelSum, blend_with
from dnncore.tensor import Tensor

__all__ = [
    "Convolution",
    "ConvolutionBackwardData",
    "ConvolutionBackwardFilter",
    "FusedConvolution",
    "ImageConvolution",
]

Extents = int | tuple[int, ...]
Padding = int | tuple[int | tuple[int, int], ...]


@dataclass(frozen=True)
class _Geometry(Operator):
    """How a filter moves: one number for all spatial dimensions, or one for each (padding: or a pair for each).

    Args:
        stride: Steps.
        padding: Zeros before and after.
        dilation: Distance between taps.
        groups: G.
    """

    stride: Extents = 1
    padding: Padding = 0
    dilation: Extents = 1
    groups: int = 1

    def _descriptor(self, ndim: int) -> ConvolutionDescriptor:
        return ConvolutionDescriptor.make(
            ndim - 2, padding=self.padding, stride=self.stride, dilation=self.dilation, groups=self.groups
        )

    def _settings(self) -> tuple[Extents, Padding, Extents, int]:
        return self.stride, self.padding, self.dilation, self.groups


@dataclass(frozen=True)
class Convolution(_Geometry):
    """Cross-correlation of x [N, C, *spatial] with w [K, C/G, *kernel], plus bias [K] -> [N, K, *output]."""

    kind: ClassVar[str] = "convolution"
    input_names: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")
    optional: ClassVar[int] = 1
    batched: ClassVar[frozenset[int]] = frozenset({0})

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, w = inputs[:2]
        assert x is not None
        assert w is not None
        if len(x.shape) < 3 or len(w.shape) != len(x.shape):
            raise BadParamError(f"weight {w} needs an input [N, C, {max(len(w.shape) - 2, 1)} extents], it is {x}")
        y = Spec(x.dtype, self._descriptor(len(x.shape)).output_shape(x.shape, w.shape))
        for spec in inputs[2:]:
            if spec is not None and spec.shape != w.shape[:1]:
                raise BadParamError(f"bias {spec} must have the shape [{w.shape[0]}]")
        return (y,)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, bias = (*inputs, None)[:3]
        assert x is not None
        assert w is not None
        conv = self._descriptor(x.ndim)
        if bias is None:
            ops.convolution_forward(handle, 1.0, x, w, conv, 0.0, outputs[0])
        else:
            ops.convolution_bias_activation_forward(
                handle, 1.0, x, w, conv, as_channels(bias, x.ndim), None, outputs[0]
            )

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        x, w = step.inputs[:2]
        dx = dw = db = None
        if step.wants(1):
            kernel = step.extents(w, 2)
            dw = step.add(ConvolutionBackwardFilter(*self._settings(), kernel=kernel), x, step.dy, step.partial(1))
        if step.wants(2):
            db = step.add(ChannelSum(), step.dy, step.partial(2))
        if step.wants(0):
            spatial = step.extents(x, 2)
            dx = step.add(ConvolutionBackwardData(*self._settings(), spatial=spatial), w, step.dy, step.partial(0))
        return (dx, dw, db)

    def macs(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> int:
        return _macs(inputs[1], outputs[0])


@dataclass(frozen=True)
class FusedConvolution(Activated, Convolution):
    """activation(conv(x, weight) + bias + residual), rounded once; a pass makes it (dnncore/nn/passes/convolutions.py)."""

    kind: ClassVar[str] = "fused_convolution"
    input_names: ClassVar[tuple[str, ...]] = ("x", "weight", "bias", "residual")
    optional: ClassVar[int] = 2
    in_place: ClassVar[frozenset[int]] = frozenset({3})
    batched: ClassVar[frozenset[int]] = frozenset({0, 3})

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        (y,) = super().infer(inputs[:3])
        residual = (*inputs, None, None)[3]
        if residual is not None and residual != y:
            raise BadParamError(f"residual {residual} must be as the output, {y}")
        _ = self._activation()  # which checks mode and coefficient
        return (y,)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, bias, residual = (*inputs, None, None)[:4]
        assert x is not None
        assert w is not None
        channels = None if bias is None else as_channels(bias, x.ndim)
        conv, activation = self._descriptor(x.ndim), self._activation()
        ops.convolution_bias_activation_forward(handle, 1.0, x, w, conv, channels, activation, outputs[0], z=residual)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        raise BadParamError(f"{self.kind} has no gradient: differentiate a graph before its convolutions are fused")


@dataclass(frozen=True)
class ImageConvolution(Activated, _Geometry):
    """activation(conv(table[c, x], weight) + bias) of pixels x, uint8 [N, H, W, C], or without a table of float32 [N, C, H, W].

    `table` is float32 [C, 256], what each value of a pixel becomes. That, or x, is rounded to the weight's dtype; there is one
    group. Passes make it (dnncore/nn/passes/pixels.py, casts.py).
    """

    kind: ClassVar[str] = "image_convolution"
    input_names: ClassVar[tuple[str, ...]] = ("x", "weight", "table", "bias")
    optional: ClassVar[int] = 2
    batched: ClassVar[frozenset[int]] = frozenset({0})

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, w, table, bias = (*inputs, None, None)[:4]
        assert x is not None
        assert w is not None
        dtype, axes = (DType.UINT8, "N, H, W, C") if table is not None else (DType.FLOAT32, "N, C, H, W")
        if x.dtype is not dtype or len(x.shape) != 4 or len(w.shape) != 4:
            said = f"{dtype.value} [{axes}] {'without' if table is None else 'with'} a table"
            raise BadParamError(f"{self.kind} reads {said}, and a weight [K, C, R, S], not {x} and {w}")
        batch, *extents = x.shape
        height, width, channels = extents if table is not None else (*extents[1:], extents[0])
        if table is not None and table != Spec(DType.FLOAT32, (channels, 256)):
            raise BadParamError(
                f"{self.kind} of {channels} channels needs a table float32[{channels}, 256], not {table}"
            )
        if bias is not None and bias.shape != w.shape[:1]:
            raise BadParamError(f"bias {bias} must have the shape [{w.shape[0]}]")
        _ = self._activation()  # which checks mode and coefficient
        return (Spec(w.dtype, self._descriptor(4).output_shape((batch, channels, height, width), w.shape)),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, table, bias = (*inputs, None, None)[:4]
        assert x is not None
        assert w is not None
        channels, activation = None if bias is None else as_channels(bias, 4), self._activation()
        images = x if table is None else x.view(x.descriptor.transposed(0, 3, 1, 2))
        ops.image_convolution(handle, 1.0, images, table, w, self._descriptor(4), channels, activation, 0.0, outputs[0])

    def macs(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> int:
        return _macs(inputs[1], outputs[0])


@dataclass(frozen=True)
class ConvolutionBackwardData(_Geometry):
    """dx [N, C, *spatial] of a convolution, from w and dy; plus what is there already.

    Args:
        spatial: Extents of dx, which a stride hides from dy.
    """

    kind: ClassVar[str] = "convolution_backward_data"
    input_names: ClassVar[tuple[str, ...]] = ("weight", "dy", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({2})

    spatial: tuple[int, ...] = ()

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        w, dy = inputs[:2]
        return (dy.with_shape(dy.shape[0], w.shape[1] * self.groups, *self.spatial),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        w, dy = inputs[:2]
        beta = blend_with(handle, inputs[2:], outputs[0])
        ops.convolution_backward_data(handle, 1.0, w, dy, self._descriptor(dy.ndim), beta, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """Of a transposed convolution, which nets have it for: the adjoint is the convolution, w's that with x and dy exchanged."""
        w, x = step.inputs[:2]
        dw = dx = None
        if step.wants(0):
            kernel = step.extents(w, 2)
            dw = step.add(ConvolutionBackwardFilter(*self._settings(), kernel=kernel), step.dy, x, step.partial(0))
        if step.wants(1):
            dx = step.plus(step.add(Convolution(*self._settings()), step.dy, w), 1)
        return (dw, dx, step.plus(step.dy, 2) if step.wants(2) else None)

    def macs(self, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
        return inputs[1].size * math.prod(inputs[0].shape[1:])


@dataclass(frozen=True)
class ConvolutionBackwardFilter(_Geometry):
    """dw [K, C/G, *kernel] of a convolution, from x and dy; plus what is there already.

    Args:
        kernel: Extents of the filter.
    """

    kind: ClassVar[str] = "convolution_backward_filter"
    input_names: ClassVar[tuple[str, ...]] = ("x", "dy", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({2})

    kernel: tuple[int, ...] = ()

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x, dy = inputs[:2]
        return (dy.with_shape(dy.shape[1], x.shape[1] // self.groups, *self.kernel),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, dy = inputs[:2]
        beta = blend_with(handle, inputs[2:], outputs[0])
        ops.convolution_backward_filter(handle, 1.0, x, dy, self._descriptor(dy.ndim), beta, outputs[0])

    def macs(self, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
        return inputs[1].size * math.prod(outputs[0].shape[1:])


def as_channels(vector: Tensor, ndim: int) -> Tensor:
    """A [K] as [1, K, 1, ...]; it may be part of something else."""
    (count,), (stride,) = vector.shape, vector.descriptor.strides
    shape, strides = (1, count, *(1,) * (ndim - 2)), (max(count * stride, 1), stride, *(1,) * (ndim - 2))
    return vector.view(TensorDescriptor(vector.dtype, shape, strides))


def _macs(w: Spec | None, y: Spec) -> int:
    assert w is not None
    return y.size * math.prod(w.shape[1:])
