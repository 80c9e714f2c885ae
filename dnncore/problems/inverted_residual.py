"""MobileNetV2's block of layers: channels spread out, filtered one by one, and brought together again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.fused_convolution import FusedConvolutionProblem
from dnncore.problems.layers import Layer, layer
from dnncore.problems.normalization.operands import OptionalOperands

__all__ = ["InvertedResidualProblem"]

_NARROW = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class InvertedResidualProblem(OptionalOperands):
    """y = conv(f(conv(f(conv(x, expand) + b), depthwise) + b), project) + b [+ x], f being the activation; E expanded channels.

    What the first two convolutions give is rounded to the dtype, as if each were an operation of its own. Without `expand` the
    depthwise convolution reads x.

    Args:
        x: float16 or bfloat16 [N, C, H, W].
        depthwise: [E, 1, 3, 3], padding 1.
        project: [K, E, 1, 1].
        y: [N, K, P, Q].
        expand: [E, C, 1, 1]; None where E is C.
        expand_bias: [1, E, 1, 1], of x's dtype or float32; None for 0.
        depthwise_bias: Likewise.
        project_bias: [1, K, 1, 1], likewise.
        activation: What follows the first two; None for the identity.
        stride: Of the depthwise convolution, along both axes.
        residual: Whether x is added; it has the shape of y then.

    Raises:
        BadParamError: dtypes or shapes disagree.

    Source: Sandler et al., arXiv 1801.04381, section 3.3.
    """

    x: TensorDescriptor
    depthwise: TensorDescriptor
    project: TensorDescriptor
    y: TensorDescriptor
    expand: TensorDescriptor | None = None
    expand_bias: TensorDescriptor | None = None
    depthwise_bias: TensorDescriptor | None = None
    project_bias: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None
    stride: int = 1
    residual: bool = False
    possible_inputs: ClassVar[tuple[str, ...]] = (
        *("x", "expand", "expand_bias", "depthwise", "depthwise_bias", "project", "project_bias"),
    )
    possible_outputs: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        if self.x.dtype not in _NARROW or self.x.ndim != 4:
            raise BadParamError(f"x is {self.x}; float16 or bfloat16 [N, C, H, W] is needed")
        if self.depthwise.shape[1:] != (1, 3, 3):
            raise BadParamError(f"depthwise has shape {self.depthwise.shape}; [E, 1, 3, 3] is needed")
        if self.expand is None and self.expand_bias is not None:
            raise BadParamError("expand_bias came without expand")
        for name, filters in (("expand", self.expand), ("project", self.project)):
            if filters is not None and filters.shape[2:] != (1, 1):
                raise BadParamError(f"{name} has shape {filters.shape}; filters of 1 x 1 are needed")
        _ = self.layers  # which check everything else

    @property
    def expanded(self) -> TensorDescriptor:
        """What the depthwise convolution reads: x, or [N, E, H, W] channels-last without gaps."""
        batch, _, height, width = self.x.shape
        if self.expand is None:
            return self.x
        return TensorDescriptor.packed((batch, self.expand.shape[0], height, width), self.x.dtype, Layout.NHWC)

    @property
    def filtered(self) -> TensorDescriptor:
        """What it writes: [N, E, P, Q], likewise."""
        shape = self._depthwise_convolution.output_shape(self.expanded.shape, self.depthwise.shape)
        return TensorDescriptor.packed(shape, self.x.dtype, Layout.NHWC)

    @property
    def _depthwise_convolution(self) -> ConvolutionDescriptor:
        return ConvolutionDescriptor.make(padding=1, stride=self.stride, groups=self.depthwise.shape[0])

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The convolutions one by one: three, or two without `expand`."""
        pointwise, found, filtered_of = ConvolutionDescriptor.make(), [], "x"
        if self.expand is not None:
            expand = FusedConvolutionProblem(
                *(self.x, self.expand, self.expanded, pointwise),
                bias=self.expand_bias,
                activation=self.activation,
                overwrites=True,
            )
            filtered_of = "expanded"
            found.append(layer(expand, "x", "expand", filtered_of))
        depthwise = FusedConvolutionProblem(
            *(self.expanded, self.depthwise, self.filtered, self._depthwise_convolution),
            bias=self.depthwise_bias,
            activation=self.activation,
            overwrites=True,
        )
        z, z_name = (self.x, "x") if self.residual else (None, None)
        project = FusedConvolutionProblem(self.filtered, self.project, self.y, pointwise, bias=self.project_bias, z=z)
        return (
            *found,
            layer(depthwise, filtered_of, "depthwise", "filtered"),
            layer(project, "filtered", "project", "y", z_name),
        )

    @property
    def macs(self) -> int:
        """Multiply-adds of the convolutions."""
        return sum(one.problem.macs for one in self.layers)
