"""ResNet's block of layers: channels brought together, filtered, and spread out again, with what it began with added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.fused_convolution import FusedConvolutionProblem
from dnncore.problems.normalization.operands import OptionalOperands

__all__ = ["BottleneckProblem"]

_NARROW = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class BottleneckProblem(OptionalOperands):
    """y = f(conv(f(conv(f(conv(x, reduce) + b), middle) + b), restore) + b [+ z]), f being the activation; E channels within.

    What the first two convolutions give is rounded to the dtype, as if each were an operation of its own.

    Args:
        x: float16 or bfloat16 [N, C, H, W].
        reduce: [E, C, 1, 1].
        middle: [E, E, 3, 3], padding 1.
        restore: [K, E, 1, 1].
        y: [N, K, P, Q], neither x nor z.
        reduce_bias: [1, E, 1, 1], of x's dtype or float32; None for 0.
        middle_bias: Likewise.
        restore_bias: [1, K, 1, 1], likewise.
        z: [N, K, P, Q], what is added where it is not x: the shortcut; None for x, or nothing.
        activation: What follows each of the three; None for the identity.
        stride: Of the middle convolution, along both axes.
        residual: Whether x is added; it has the shape of y then, and there is no z.

    Raises:
        BadParamError: dtypes or shapes disagree.

    Source: He et al., arXiv 1512.03385, section 4.1 (figure 5); the stride as torchvision has it.
    """

    x: TensorDescriptor
    reduce: TensorDescriptor
    middle: TensorDescriptor
    restore: TensorDescriptor
    y: TensorDescriptor
    reduce_bias: TensorDescriptor | None = None
    middle_bias: TensorDescriptor | None = None
    restore_bias: TensorDescriptor | None = None
    z: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None
    stride: int = 1
    residual: bool = False
    possible_inputs: ClassVar[tuple[str, ...]] = (
        *("x", "reduce", "reduce_bias", "middle", "middle_bias", "restore", "restore_bias", "z"),
    )
    possible_outputs: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        if self.x.dtype not in _NARROW or self.x.ndim != 4:
            raise BadParamError(f"x is {self.x}; float16 or bfloat16 [N, C, H, W] is needed")
        for name, extent in (("reduce", 1), ("middle", 3), ("restore", 1)):
            filters: TensorDescriptor = getattr(self, name)
            if filters.shape[2:] != (extent, extent):
                raise BadParamError(f"{name} has shape {filters.shape}; filters of {extent} x {extent} are needed")
        if self.residual and self.z is not None:
            raise BadParamError(f"z {self.z} came where x is added")
        _ = self.layers  # which check everything else

    @property
    def reduced(self) -> TensorDescriptor:
        """What the middle convolution reads: [N, E, H, W] channels-last without gaps."""
        batch, _, height, width = self.x.shape
        return TensorDescriptor.packed((batch, self.reduce.shape[0], height, width), self.x.dtype, Layout.NHWC)

    @property
    def filtered(self) -> TensorDescriptor:
        """What it writes: [N, E, P, Q], likewise."""
        shape = self._middle_convolution.output_shape(self.reduced.shape, self.middle.shape)
        return TensorDescriptor.packed(shape, self.x.dtype, Layout.NHWC)

    @property
    def _middle_convolution(self) -> ConvolutionDescriptor:
        return ConvolutionDescriptor.make(padding=1, stride=self.stride)

    @property
    def layers(self) -> tuple[FusedConvolutionProblem, FusedConvolutionProblem, FusedConvolutionProblem]:
        """The convolutions one by one."""
        pointwise, reduced, filtered = ConvolutionDescriptor.make(), self.reduced, self.filtered
        return (
            FusedConvolutionProblem(
                *(self.x, self.reduce, reduced, pointwise),
                bias=self.reduce_bias,
                activation=self.activation,
                overwrites=True,
            ),
            FusedConvolutionProblem(
                *(reduced, self.middle, filtered, self._middle_convolution),
                bias=self.middle_bias,
                activation=self.activation,
                overwrites=True,
            ),
            FusedConvolutionProblem(
                *(filtered, self.restore, self.y, pointwise),
                bias=self.restore_bias,
                z=self.x if self.residual else self.z,
                activation=self.activation,
            ),
        )

    @property
    def macs(self) -> int:
        """Multiply-adds of the convolutions."""
        return sum(layer.macs for layer in self.layers)
