"""A convolution with what follows it, of whose result the maximum of every 2 x 2 places is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, Layout, PoolingDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.fused_convolution import FusedConvolutionProblem
from dnncore.problems.normalization.operands import OptionalOperands
from dnncore.problems.pooling import PoolingForwardProblem
from dnncore.problems.problem import same_dtype

__all__ = ["PooledConvolutionProblem"]

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_WINDOWS = PoolingDescriptor.make("max", 2)


@dataclass(frozen=True, slots=True)
class PooledConvolutionProblem(OptionalOperands):
    """y = max over windows of 2 x 2 that touch of activation(conv(x, w) + bias), where NaN is the maximum of its window.

    What is pooled is rounded to the dtype before, as if each were an operation of its own; since rounding keeps the order, rounding
    the maximum gives the same bits. An algorithm may leave that to the end: with an alpha other than 1, or a beta, the maximum is
    rounded before they apply or not.

    Args:
        x: float16, bfloat16 or float32 [N, C, H, W].
        w: [K, C/G, R, S].
        y: [N, K, P/2, Q/2], where the convolution gives [N, K, P, Q]; P and Q are even.
        convolution: Padding, stride, dilation, groups, mode, math.
        bias: [1, K, 1, 1], of x's dtype or float32; None for 0.
        activation: None for the identity.

    Raises:
        BadParamError: dtypes or shapes disagree, or P or Q is odd.
    """

    x: TensorDescriptor
    w: TensorDescriptor
    y: TensorDescriptor
    convolution: ConvolutionDescriptor
    bias: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None
    possible_inputs: ClassVar[tuple[str, ...]] = ("x", "w", "bias")
    possible_outputs: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        if self.x.dtype not in _DTYPES or self.x.ndim != 4:
            raise BadParamError(f"x is {self.x}; float16, bfloat16 or float32 [N, C, H, W] is needed")
        same_dtype(x=self.x, w=self.w, y=self.y)
        batch, filters, rows, columns = self.convolution.output_shape(self.x.shape, self.w.shape)
        if rows % 2 or columns % 2:
            raise BadParamError(
                f"x {self.x.shape} and w {self.w.shape} give {rows} x {columns} places; even extents are needed for windows "
                "of 2 x 2: pool in an operation of its own"
            )
        expected = (batch, filters, rows // 2, columns // 2)
        if self.y.shape != expected:
            raise BadParamError(f"y has shape {self.y.shape} but x {self.x.shape} and w {self.w.shape} give {expected}")
        _ = self.fused, self.pooling  # which check everything else

    @property
    def fused(self) -> FusedConvolutionProblem:
        """The convolution alone, whose y [N, K, P, Q] has no gaps: channels-last where x or y is, else row-major."""
        shape = self.convolution.output_shape(self.x.shape, self.w.shape)
        layout = Layout.NHWC if 1 in (self.x.strides[1], self.y.strides[1]) else Layout.NCHW
        return FusedConvolutionProblem(
            *(self.x, self.w, TensorDescriptor.packed(shape, self.x.dtype, layout), self.convolution),
            bias=self.bias,
            activation=self.activation,
            overwrites=True,
        )

    @property
    def pooling(self) -> PoolingForwardProblem:
        """What makes y of its result."""
        return PoolingForwardProblem(self.fused.y, self.y, _WINDOWS)

    @property
    def macs(self) -> int:
        """Multiply-adds of the convolution."""
        return self.fused.macs
