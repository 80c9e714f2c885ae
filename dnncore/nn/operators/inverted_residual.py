"""MobileNetV2's block of three convolutions as one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import ConvolutionDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import Operator, Spec
from dnncore.nn.operators.activated import Activated
from dnncore.nn.operators.convolution import as_channels
from dnncore.tensor import Tensor

__all__ = ["InvertedResidual"]


@dataclass(frozen=True)
class InvertedResidual(Activated, Operator):
    """conv(f(conv(f(conv(x, expand)), depthwise)), project) [+ x], each with a bias.

    A pass makes it (dnncore/nn/passes/inverted_residuals.py).

    Args:
        stride: Of the depthwise convolution.
        residual: Whether x is added.
    """

    kind: ClassVar[str] = "inverted_residual"
    input_names: ClassVar[tuple[str, ...]] = (
        *("x", "depthwise", "project", "expand", "expand_bias", "depthwise_bias", "project_bias"),
    )
    optional: ClassVar[int] = 4
    batched: ClassVar[frozenset[int]] = frozenset({0})

    stride: int = 1
    residual: bool = False

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, depthwise, project, expand, *biases = (*inputs, None, None, None, None)[:7]
        assert x is not None
        assert depthwise is not None
        assert project is not None
        if len(x.shape) != 4 or len(depthwise.shape) != 4 or depthwise.shape[1:] != (1, 3, 3):
            raise BadParamError(f"{self.kind} reads [N, C, H, W] and filters [E, 1, 3, 3], not {x} and {depthwise}")
        wide = depthwise.shape[0]
        pointwise, conv = ConvolutionDescriptor.make(), self._depthwise(wide)
        spread = x.shape if expand is None else pointwise.output_shape(x.shape, expand.shape)
        y = Spec(x.dtype, pointwise.output_shape(conv.output_shape(spread, depthwise.shape), project.shape))
        if self.residual and y != x:
            raise BadParamError(f"x {x} must be as the output, {y}, to be added")
        for bias, extent in zip(biases, (wide, wide, project.shape[0]), strict=True):
            if bias is not None and bias.shape != (extent,):
                raise BadParamError(f"bias {bias} must have the shape [{extent}]")
        _ = self._activation()  # which checks mode and coefficient
        return (y,)

    def _depthwise(self, channels: int) -> ConvolutionDescriptor:
        return ConvolutionDescriptor.make(padding=1, stride=self.stride, groups=channels)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, depthwise, project, expand, *biases = (*inputs, None, None, None, None)[:7]
        assert x is not None
        assert depthwise is not None
        assert project is not None
        expand_bias, depthwise_bias, project_bias = (None if one is None else as_channels(one, 4) for one in biases)
        ops.inverted_residual(
            *(handle, 1.0, x, depthwise, project, 0.0, outputs[0]),
            expand=expand,
            expand_bias=expand_bias,
            depthwise_bias=depthwise_bias,
            project_bias=project_bias,
            activation=self._activation(),
            stride=self.stride,
            residual=self.residual,
        )

    def macs(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> int:
        x, depthwise, project, expand = (*inputs, None)[:4]
        assert x is not None
        assert depthwise is not None
        assert project is not None
        places = outputs[0].size // project.shape[0]
        spread = 0 if expand is None else x.size * expand.shape[0]
        return spread + places * (depthwise.size + project.size)
