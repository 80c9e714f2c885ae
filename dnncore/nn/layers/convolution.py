"""Convolution with an optional bias."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dnncore import ops
from dnncore.descriptors import ConvolutionDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.layer import Gradient, Layer, ParameterSpec, Shape
from dnncore.tensor import Tensor

__all__ = ["Convolution"]


@dataclass(frozen=True)
class Convolution(Layer):
    """Cross-correlation of [C, *spatial] with `num_output` filters. Parameters: weight [K, C/G, *kernel], bias [K].

    Args:
        num_output: K.
        kernel: Extents of the filter; as many as the input has spatial dimensions.
        stride: One number, or one a spatial dimension.
        padding: Zeros on both sides, likewise.
        dilation: Distance between taps, likewise.
        groups: G.
        bias: Whether a bias is added.
    """

    num_output: int
    kernel: tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    bias: bool = True

    def _descriptor(self) -> ConvolutionDescriptor:
        return ConvolutionDescriptor.make(
            len(self.kernel), padding=self.padding, stride=self.stride, dilation=self.dilation, groups=self.groups
        )

    def _weight_shape(self, x: Shape) -> Shape:
        return (self.num_output, x[0] // self.groups, *self.kernel)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[K, *output]."""
        (x,) = inputs
        if self.num_output < 1:
            raise BadParamError(f"num_output {self.num_output} must be 1 or more")
        if len(x) != len(self.kernel) + 1:
            raise BadParamError(
                f"kernel {self.kernel} needs an input [C, {len(self.kernel)} extents], it has {list(x)}"
            )
        return self._descriptor().output_shape((1, *x), self._weight_shape(x))[1:]

    def parameters(self, inputs: Sequence[Shape]) -> Mapping[str, ParameterSpec]:
        """Weight, and bias if there is one."""
        weight = self._weight_shape(inputs[0])
        specs = {"weight": ParameterSpec(weight, fan_in=math.prod(weight[1:]))}
        if self.bias:
            specs["bias"] = ParameterSpec((self.num_output,), fan_in=0)
        return specs

    def _as_channels(self, bias: Tensor) -> Tensor:
        return bias.reshape(1, self.num_output, *(1,) * len(self.kernel))

    def forward(
        self, handle: Handle, inputs: Sequence[Tensor], output: Tensor, parameters: Mapping[str, Tensor]
    ) -> None:
        """y = w * x + b."""
        ops.convolution_forward(handle, 1.0, inputs[0], parameters["weight"], self._descriptor(), 0.0, output)
        if self.bias:
            ops.add(handle, 1.0, self._as_channels(parameters["bias"]), 1.0, output)

    def backward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],
        output: Tensor,  # noqa: ARG002 (the Layer's signature)
        output_gradient: Tensor,
        parameters: Mapping[str, Tensor],
        input_gradients: Sequence[Gradient | None],
        parameter_gradients: Mapping[str, Tensor],
    ) -> None:
        """dw, db, and dx where it is wanted."""
        conv, dy = self._descriptor(), output_gradient
        ops.convolution_backward_filter(handle, 1.0, inputs[0], dy, conv, 0.0, parameter_gradients["weight"])
        if self.bias:
            ops.convolution_backward_bias(handle, 1.0, dy, 0.0, self._as_channels(parameter_gradients["bias"]))
        if (dx := input_gradients[0]) is not None:
            ops.convolution_backward_data(handle, 1.0, parameters["weight"], dy, conv, dx.beta, dx.tensor)
