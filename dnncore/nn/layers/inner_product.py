"""The fully connected layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.layer import Gradient, Layer, ParameterSpec, Shape
from dnncore.tensor import Tensor

__all__ = ["InnerProduct"]


@dataclass(frozen=True)
class InnerProduct(Layer):
    """y = w x + b of everything in a sample, flattened. Parameters: weight [K, C], bias [K].

    Args:
        num_output: K.
        bias: Whether a bias is added.
    """

    num_output: int
    bias: bool = True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[K]."""
        if self.num_output < 1:
            raise BadParamError(f"num_output {self.num_output} must be 1 or more")
        if math.prod(inputs[0]) < 1:
            raise BadParamError(f"input {list(inputs[0])} is empty")
        return (self.num_output,)

    def parameters(self, inputs: Sequence[Shape]) -> Mapping[str, ParameterSpec]:
        """Weight, and bias if there is one."""
        fan_in = math.prod(inputs[0])
        specs = {"weight": ParameterSpec((self.num_output, fan_in), fan_in)}
        if self.bias:
            specs["bias"] = ParameterSpec((self.num_output,), fan_in=0)
        return specs

    def forward(
        self, handle: Handle, inputs: Sequence[Tensor], output: Tensor, parameters: Mapping[str, Tensor]
    ) -> None:
        """y = x w' + b."""
        ops.inner_product_forward(handle, 1.0, inputs[0], parameters["weight"], 0.0, output)
        if self.bias:
            ops.add(handle, 1.0, parameters["bias"].reshape(1, self.num_output), 1.0, output)

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
        ops.inner_product_backward_weights(handle, 1.0, inputs[0], output_gradient, 0.0, parameter_gradients["weight"])
        if self.bias:
            db = parameter_gradients["bias"].reshape(1, self.num_output)
            ops.sum_to(handle, 1.0, output_gradient, 0.0, db)
        if (dx := input_gradients[0]) is not None:
            ops.inner_product_backward_data(handle, 1.0, parameters["weight"], output_gradient, dx.beta, dx.tensor)
