"""Softmax over the channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dnncore import ops
from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.handle import Handle
from dnncore.nn.layer import Gradient, Layer, Shape
from dnncore.tensor import Tensor

__all__ = ["Softmax"]

_ARGUMENTS = (SoftmaxAlgorithm.ACCURATE, SoftmaxMode.CHANNEL)


@dataclass(frozen=True)
class Softmax(Layer):
    """exp(x) over its sum along C, at each place."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input."""
        return inputs[0]

    def forward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],
        output: Tensor,
        parameters: Mapping[str, Tensor],  # noqa: ARG002 (it has none)
    ) -> None:
        """Normalise."""
        ops.softmax_forward(handle, *_ARGUMENTS, 1.0, inputs[0], 0.0, output)

    def backward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],  # noqa: ARG002 (the Layer's signature)
        output: Tensor,
        output_gradient: Tensor,
        parameters: Mapping[str, Tensor],  # noqa: ARG002
        input_gradients: Sequence[Gradient | None],
        parameter_gradients: Mapping[str, Tensor],  # noqa: ARG002
    ) -> None:
        """dx where it is wanted."""
        if (dx := input_gradients[0]) is not None:
            ops.softmax_backward(handle, *_ARGUMENTS, 1.0, output, output_gradient, dx.beta, dx.tensor)
