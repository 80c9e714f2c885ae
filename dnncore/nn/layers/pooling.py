"""Maximum and average pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dnncore import ops
from dnncore.descriptors import PoolingDescriptor
from dnncore.handle import Handle
from dnncore.nn.layer import Gradient, Layer, Shape
from dnncore.tensor import Tensor

__all__ = ["Pooling"]


@dataclass(frozen=True)
class Pooling(Layer):
    """A window over [C, *spatial].

    Args:
        mode: "max", "average_include_padding" or "average_exclude_padding".
        window: Extents; as many as the input has spatial dimensions.
        stride: One number, or one a spatial dimension; None lets the windows touch.
        padding: Places on both sides, likewise.
        ceil_mode: Round the output's extents up.
    """

    mode: str
    window: tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: int | tuple[int, ...] = 0
    ceil_mode: bool = False

    def _descriptor(self) -> PoolingDescriptor:
        return PoolingDescriptor.make(
            self.mode,
            self.window,
            spatial_ndim=len(self.window),
            padding=self.padding,
            stride=self.stride,
            ceil_mode=self.ceil_mode,
        )

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[C, *output]."""
        return self._descriptor().output_shape((1, *inputs[0]))[1:]

    def forward(
        self,
        handle: Handle,
        inputs: Sequence[Tensor],
        output: Tensor,
        parameters: Mapping[str, Tensor],  # noqa: ARG002 (it has none)
    ) -> None:
        """Pool."""
        ops.pooling_forward(handle, 1.0, inputs[0], self._descriptor(), 0.0, output)

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
        """dx where it is wanted."""
        if (dx := input_gradients[0]) is not None:
            ops.pooling_backward(
                handle, 1.0, output, output_gradient, inputs[0], self._descriptor(), dx.beta, dx.tensor
            )
