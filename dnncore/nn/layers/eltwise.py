"""Layers that join two blobs of the same shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.layer import Gradient, Layer, Shape
from dnncore.tensor import Tensor

__all__ = ["Add"]


@dataclass(frozen=True)
class Add(Layer):
    """The sum of two blobs, as at the end of a residual branch."""

    num_inputs = 2

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the inputs, which must be equal."""
        if inputs[0] != inputs[1]:
            raise BadParamError(f"the inputs have shapes {list(inputs[0])} and {list(inputs[1])}; they must be equal")
        return inputs[0]

    def forward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],
        output: Tensor,
        parameters: Mapping[str, Tensor],  # noqa: ARG002 (it has none)
    ) -> None:
        """a + b."""
        ops.transform(handle, 1.0, inputs[0], 0.0, output)
        ops.add(handle, 1.0, inputs[1], 1.0, output)

    def backward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],  # noqa: ARG002 (the Layer's signature)
        output: Tensor,  # noqa: ARG002
        output_gradient: Tensor,
        parameters: Mapping[str, Tensor],  # noqa: ARG002
        input_gradients: Sequence[Gradient | None],
        parameter_gradients: Mapping[str, Tensor],  # noqa: ARG002
    ) -> None:
        """dy for each input that wants it."""
        for gradient in input_gradients:
            if gradient is not None:
                ops.transform(handle, 1.0, output_gradient, gradient.beta, gradient.tensor)
