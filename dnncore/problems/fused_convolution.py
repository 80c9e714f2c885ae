"""Convolution with everything that customarily follows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, TensorDescriptor
from dnncore.descriptors.settings import HashedOnce, number, settle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.convolution import ConvolutionKind, ConvolutionProblem, Direction
from dnncore.problems.normalization.operands import OptionalOperands

__all__ = ["FusedConvolutionProblem"]

_OF_INT8 = (DType.INT8, DType.FLOAT32)
"""What y may be where x and w are int8."""


@dataclass(frozen=True, slots=True)
class FusedConvolutionProblem(HashedOnce, OptionalOperands):
    """y = activation(alpha1 * conv(x, w) * scale + bias + alpha2 * z), in this order and in the compute type, rounded once.

    alpha1 and alpha2 are the problem's own, inside the activation, where cudnnConvolutionBiasActivationForward has its two. A
    launch's alpha and beta stay outside, as in every operation: they blend what the activation gave with what y held.

    One floating-point dtype; scale and bias may be of its compute type instead, both alike. Or x and w are int8, y and z both int8
    or both float32, and scale and bias float32: the products are added up exactly, and int8 is rounded to even and saturated.

    Args:
        x: [N, C, *input].
        w: [K, C/G, *filter].
        y: [N, K, *output]; it may be z.
        convolution: Padding, stride, dilation, groups, mode, math.
        scale: [1, K, 1, ...], a folded batch normalisation's or the dequantisation's; None for 1.
        bias: [1, K, 1, ...]; None for 0.
        z: [N, K, *output], a residual; None for 0.
        activation: None for the identity.
        alpha1: Factor of the convolution.
        alpha2: Factor of z; with 0 z is not read. Without z it must be 0 or 1, which says nothing.
        overwrites: Whether y may hold anything until the launch is over: its beta is 0, and z lies elsewhere. An algorithm that has
            sums to keep then needs no workspace for them.

    Attributes:
        plain: The convolution alone.

    Raises:
        BadParamError: dtypes or shapes disagree, or a factor is not finite.
    """

    x: TensorDescriptor
    w: TensorDescriptor
    y: TensorDescriptor
    convolution: ConvolutionDescriptor
    scale: TensorDescriptor | None = None
    bias: TensorDescriptor | None = None
    z: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None
    alpha1: float = 1.0
    alpha2: float = 1.0
    overwrites: bool = False
    plain: ConvolutionProblem = field(init=False, repr=False, compare=False)
    possible_inputs: ClassVar[tuple[str, ...]] = ("x", "w", "scale", "bias", "z")
    possible_outputs: ClassVar[tuple[str, ...]] = ("y",)
    possible_in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset({("z", "y")})

    __hash__ = HashedOnce.__hash__

    @property
    def in_place(self) -> frozenset[tuple[str, str]]:  # type: ignore[override]
        """z and y, unless y is overwritten while z is still to be read."""
        return frozenset() if self.overwrites else self.possible_in_place

    def __post_init__(self) -> None:
        settle(self, alpha1=number(self.alpha1, "alpha1"), alpha2=number(self.alpha2, "alpha2"))
        if not self.x.dtype.is_floating and self.y.dtype not in _OF_INT8:
            names = " or ".join(dtype.value for dtype in _OF_INT8)
            raise BadParamError(f"y is {self.y.dtype.value} but x is {self.x.dtype.value}; y must be {names}")
        plain = ConvolutionProblem(Direction.FORWARD, self.x, self.w, self.y, self.convolution)  # which checks these
        settle(self, plain=plain)
        if self.z is not None and (self.z.shape, self.z.dtype) != (self.y.shape, self.y.dtype):
            raise BadParamError(f"z is {self.z} but y is {self.y}; shape and dtype must be the same")
        self._check_parameters()
        if not (math.isfinite(self.alpha1) and math.isfinite(self.alpha2)):
            raise BadParamError(f"alpha1 {self.alpha1} and alpha2 {self.alpha2} must be finite")
        if self.z is None and self.alpha2 not in (0.0, 1.0):
            raise BadParamError(f"alpha2 is {self.alpha2} but there is no z")

    def _check_parameters(self) -> None:
        expected = (1, self.w.shape[0], *(1,) * self.convolution.spatial_ndim)
        allowed = {self.x.dtype, self.x.dtype.compute} if self.x.dtype.is_floating else {DType.FLOAT32}
        for name, tensor in (("scale", self.scale), ("bias", self.bias)):
            if tensor is None:
                continue
            if tensor.shape != expected:
                raise BadParamError(f"{name} has shape {tensor.shape} but w {self.w.shape} needs {expected}")
            if tensor.dtype not in allowed:
                names = " or ".join(sorted(dtype.value for dtype in allowed))
                raise BadParamError(f"{name} is {tensor.dtype.value} but x is {self.x.dtype.value}; it must be {names}")
        if self.scale is not None and self.bias is not None and self.scale.dtype is not self.bias.dtype:
            raise BadParamError(f"scale is {self.scale.dtype.value} but bias is {self.bias.dtype.value}")

    @property
    def kind(self) -> ConvolutionKind:
        """That of the convolution alone."""
        return self.plain.kind

    @property
    def parameter_dtype(self) -> DType:
        """Element type of scale and bias; that of x where there is neither."""
        parameter = self.scale or self.bias
        return self.x.dtype if parameter is None else parameter.dtype

    @property
    def macs(self) -> int:
        """Multiply-adds of the plain convolution."""
        return self.plain.macs
