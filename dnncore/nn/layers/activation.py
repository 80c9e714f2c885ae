"""Element-wise layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import ActivationDescriptor
from dnncore.handle import Handle
from dnncore.nn.layer import Gradient, Layer, Shape
from dnncore.tensor import Tensor

__all__ = ["ReLU", "Sigmoid", "TanH"]


class _Activation(Layer):
    activation: ClassVar[ActivationDescriptor]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0]

    def forward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],
        output: Tensor,
        parameters: Mapping[str, Tensor],  # noqa: ARG002 (it has none)
    ) -> None:
        ops.activation_forward(handle, self.activation, 1.0, inputs[0], 0.0, output)

    def backward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],
        output: Tensor,
        output_gradient: Tensor,
        parameters: Mapping[str, Tensor],  # noqa: ARG002
        input_gradients: Sequence[Gradient | None],
        parameter_gradients: Mapping[str, Tensor],  # noqa: ARG002
    ) -> None:
        if (dx := input_gradients[0]) is not None:
            ops.activation_backward(
                handle, self.activation, 1.0, output, output_gradient, inputs[0], dx.beta, dx.tensor
            )


@dataclass(frozen=True)
class ReLU(_Activation):
    """max(x, 0)."""

    activation = ops.RELU


@dataclass(frozen=True)
class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    activation = ops.SIGMOID


@dataclass(frozen=True)
class TanH(_Activation):
    """The hyperbolic tangent."""

    activation = ops.TANH
