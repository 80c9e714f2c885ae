"""ResNet's block of layers: channels brought together, filtered, and spread out again, with what it began with added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.fused_convolution import FusedConvolutionProblem
from dnncore.problems.layers import Layer, layer
from dnncore.problems.normalization.operands import OptionalOperands

__all__ = ["BottleneckProblem"]

_NARROW = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class BottleneckProblem(OptionalOperands):
    """y = f(conv(f(conv(f(conv(x, reduce) + b), middle) + b), restore) + b [+ s]), f being the activation; E channels within.

    s is x, or z, or what a convolution makes of x: conv(x, shortcut) + b. What the first two convolutions give is rounded to the
    dtype, as if each were an operation of its own. What is added up in the end may be rounded once on the way, where it is x's.

    Args:
        x: float16 or bfloat16 [N, C, H, W].
        reduce: [E, C, 1, 1].
        middle: [E, E, 3, 3], padding 1.
        restore: [K, E, 1, 1].
        y: [N, K, P, Q], neither x nor z.
        reduce_bias: [1, E, 1, 1], of x's dtype or float32; None for 0.
        middle_bias: Likewise.
        restore_bias: [1, K, 1, 1], likewise.
        shortcut: [K, C, 1, 1].
        shortcut_bias: As `restore_bias`.
        z: [N, K, P, Q].
        activation: What follows all of them; None for the identity.
        stride: Of the middle convolution and of the shortcut, along both axes.
        residual: Whether s is x, which has the shape of y then.

    Raises:
        BadParamError: dtypes or shapes disagree, or more than one thing is to be added.

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
    shortcut: TensorDescriptor | None = None
    shortcut_bias: TensorDescriptor | None = None
    z: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None
    stride: int = 1
    residual: bool = False
    possible_inputs: ClassVar[tuple[str, ...]] = (
        *("x", "reduce", "reduce_bias", "middle", "middle_bias", "restore", "restore_bias"),
        *("shortcut", "shortcut_bias", "z"),
    )
    possible_outputs: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        if self.x.dtype not in _NARROW or self.x.ndim != 4:
            raise BadParamError(f"x is {self.x}; float16 or bfloat16 [N, C, H, W] is needed")
        for name, extent in (("reduce", 1), ("middle", 3), ("restore", 1), ("shortcut", 1)):
            filters: TensorDescriptor | None = getattr(self, name)
            if filters is not None and filters.shape[2:] != (extent, extent):
                raise BadParamError(f"{name} has shape {filters.shape}; filters of {extent} x {extent} are needed")
        if self.shortcut is None and self.shortcut_bias is not None:
            raise BadParamError("shortcut_bias came without shortcut")
        if (self.shortcut is not None) + (self.z is not None) + self.residual > 1:
            raise BadParamError(f"one of x, z {self.z} and shortcut {self.shortcut} can be added, not several")
        _ = self.layers  # which check everything else

    def _between(self, shape: tuple[int, ...]) -> TensorDescriptor:
        """What a layer gives to another: channels-last without gaps."""
        return TensorDescriptor.packed(shape, self.x.dtype, Layout.NHWC)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The convolutions one by one: three, or four with a shortcut."""
        pointwise, middle = ConvolutionDescriptor.make(), ConvolutionDescriptor.make(padding=1, stride=self.stride)
        batch, _, height, width = self.x.shape
        reduced = self._between((batch, self.reduce.shape[0], height, width))
        filtered = self._between(middle.output_shape(reduced.shape, self.middle.shape))
        first = FusedConvolutionProblem(
            self.x, self.reduce, reduced, pointwise, bias=self.reduce_bias, activation=self.activation, overwrites=True
        )
        second = FusedConvolutionProblem(
            reduced, self.middle, filtered, middle, bias=self.middle_bias, activation=self.activation, overwrites=True
        )
        before = (layer(first, "x", "reduce", "reduced"), layer(second, "reduced", "middle", "filtered"))
        if self.shortcut is None:
            z, z_name = (self.x, "x") if self.residual else (self.z, None if self.z is None else "z")
            last = FusedConvolutionProblem(
                filtered, self.restore, self.y, pointwise, bias=self.restore_bias, z=z, activation=self.activation
            )
            return (*before, layer(last, "filtered", "restore", "y", z_name))
        restored = self._between(self.y.shape)
        third = FusedConvolutionProblem(
            filtered, self.restore, restored, pointwise, bias=self.restore_bias, overwrites=True
        )
        last = FusedConvolutionProblem(
            *(self.x, self.shortcut, self.y, ConvolutionDescriptor.make(stride=self.stride)),
            bias=self.shortcut_bias,
            z=restored,
            activation=self.activation,
        )
        return (
            *before,
            layer(third, "filtered", "restore", "restored"),
            layer(last, "x", "shortcut", "y", "restored"),
        )

    @property
    def macs(self) -> int:
        """Multiply-adds of the convolutions."""
        return sum(one.problem.macs for one in self.layers)
