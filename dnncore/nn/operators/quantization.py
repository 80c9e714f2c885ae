"""Whole numbers of 8 bits in place of real ones, and the layers that multiply them; a pass makes these (dnncore/nn/passes).

A value v is kept as round(v / scale), to even and between -128 and 127: one scale for a value, one for each filter of weights. Zero
is exact, so padding is zeros. Products are added up exactly in int32, and all that follows happens in float32 and in real units,
before the result is rounded once.
"""

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
from dnncore.nn.operators.convolution import Convolution, as_channels
from dnncore.nn.operators.inner_product import InnerProduct
from dnncore.tensor import Tensor

__all__ = ["Dequantize", "Quantize", "QuantizedConvolution", "QuantizedInnerProduct"]

_POINTWISE = ConvolutionDescriptor.make()


@dataclass(frozen=True)
class Quantize(Operator):
    """round(x / scale) as int8.

    Args:
        scale: What 1 stands for.
    """

    kind: ClassVar[str] = "quantize"

    scale: float

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        _check_scales(scale=self.scale)
        if not inputs[0].dtype.is_floating:
            raise BadParamError(f"{inputs[0]} is quantized already")
        return (Spec(DType.INT8, inputs[0].shape),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.transform(handle, 1 / self.scale, inputs[0], 0.0, outputs[0])


@dataclass(frozen=True)
class Dequantize(Operator):
    """scale * x, of int8 x.

    Args:
        scale: What 1 stands for.
        dtype: Of the result, by name.
    """

    kind: ClassVar[str] = "dequantize"

    scale: float
    dtype: str = "float32"

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        _check_scales(scale=self.scale)
        if inputs[0].dtype is not DType.INT8:
            raise BadParamError(f"{inputs[0]} is not quantized")
        return (Spec(DType.of(self.dtype), inputs[0].shape),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.transform(handle, self.scale, inputs[0], 0.0, outputs[0])


@dataclass(frozen=True)
class QuantizedConvolution(Activated, Convolution):
    """round(activation(conv(x, weight) * scale + bias + residual_scale * residual) / y_scale) as int8.

    x, weight and residual are int8, and weight is laid out as a convolution's; scale [K], what a product of 1 stands for in each
    filter, and bias [K] are float32.

    Args:
        y_scale: What 1 stands for in the result.
        residual_scale: Likewise, in the residual.
    """

    kind: ClassVar[str] = "quantized_convolution"
    input_names: ClassVar[tuple[str, ...]] = ("x", "weight", "scale", "bias", "residual")
    optional: ClassVar[int] = 2
    in_place: ClassVar[frozenset[int]] = frozenset({4})
    batched: ClassVar[frozenset[int]] = frozenset({0, 4})

    y_scale: float = 1.0
    residual_scale: float = 1.0

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, weight, scale, bias, residual = (*inputs, None, None)[:5]
        _check_operands(x=x, weight=weight)
        _check_scales(y_scale=self.y_scale, residual_scale=self.residual_scale)
        (y,) = super().infer((x, weight, bias))
        _ = super().infer((x, weight, scale))
        if residual is not None and residual != y:
            raise BadParamError(f"residual {residual} must be as the output, {y}")
        _ = self._activation()  # which checks mode and coefficient
        return (y,)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, scale, bias, residual = (*inputs, None, None)[:5]
        assert x is not None
        assert w is not None
        assert scale is not None
        ops.convolution_bias_activation_forward(
            handle,
            1.0,
            x,
            w,
            self._descriptor(x.ndim),
            None if bias is None else as_channels(bias, x.ndim),
            self._activation(),
            outputs[0],
            scale=as_channels(scale, x.ndim),
            z=residual,
            alpha2=1.0 if residual is None else self.residual_scale,
            alpha=1 / self.y_scale,
        )

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        raise BadParamError(f"{self.kind} has no gradient: differentiate a graph before it is quantized")


@dataclass(frozen=True)
class QuantizedInnerProduct(Activated, InnerProduct):
    """round(activation((x weight') * scale + bias) / y_scale) as int8.

    x [N, C] and weight [K, C] are int8, scale and bias [K] float32.

    Args:
        y_scale: What 1 stands for in the result.
    """

    kind: ClassVar[str] = "quantized_inner_product"
    input_names: ClassVar[tuple[str, ...]] = ("x", "weight", "scale", "bias")
    optional: ClassVar[int] = 1
    batched: ClassVar[frozenset[int]] = frozenset({0})

    y_scale: float = 1.0

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, weight, scale, bias = (*inputs, None)[:4]
        _check_operands(x=x, weight=weight)
        _check_scales(y_scale=self.y_scale)
        _ = self._activation()  # which checks mode and coefficient
        _ = super().infer((x, weight, scale))
        return super().infer((x, weight, bias))

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, scale, bias = (*inputs, None)[:4]
        assert x is not None
        assert w is not None
        assert scale is not None
        ops.convolution_bias_activation_forward(
            handle,
            1.0,
            _as_image(x),
            _as_image(w),
            _POINTWISE,
            None if bias is None else as_channels(bias, 4),
            self._activation(),
            _as_image(outputs[0]),
            scale=as_channels(scale, 4),
            alpha=1 / self.y_scale,
        )

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        raise BadParamError(f"{self.kind} has no gradient: differentiate a graph before it is quantized")


def _check_scales(**scales: float) -> None:
    for name, scale in scales.items():
        if not (math.isfinite(scale) and scale > 0):
            raise BadParamError(f"{name} {scale} must be finite and more than 0")


def _check_operands(**operands: Spec | None) -> None:
    for name, spec in operands.items():
        if spec is None or spec.dtype is not DType.INT8:
            raise BadParamError(f"{name} {spec} must be int8")


def _as_image(matrix: Tensor) -> Tensor:
    """[M, C] as [M, C, 1, 1]."""
    descriptor = matrix.descriptor
    rows, columns = descriptor.strides
    return matrix.view(TensorDescriptor(descriptor.dtype, (*descriptor.shape, 1, 1), (rows, columns, rows, rows)))
