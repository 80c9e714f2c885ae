"""Convolution: one geometry, three directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple

from dnncore.descriptors import ConvolutionDescriptor, ConvolutionMode, MathType, TensorDescriptor
from dnncore.descriptors.settings import HashedOnce, member, settle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.problem import one_dtype, writable

__all__ = ["ConvolutionKind", "ConvolutionProblem", "Direction"]


class Direction(Enum):
    """Which of the three tensors of a convolution is computed from the other two."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_FILTER = "backward_filter"

    __hash__ = object.__hash__  # as of `DType`


class ConvolutionKind(NamedTuple):
    """What convolutions that differ in extents have in common: a net's hundred layers are of a handful of kinds. Immutable.

    Args:
        direction: Which operand is computed.
        dtypes: Of x, w and y.
        taps: The filter's extents.
        stride: One a spatial dimension.
        dilation: One a spatial dimension.
        mode: See `ConvolutionDescriptor`.
        math: Likewise.
        has_groups: Whether there is more than one.
        sees_one_channel: Whether each filter does.
        inside: Of x, w and y whether channels are innermost in memory, or there is only one.
    """

    direction: Direction
    dtypes: tuple[DType, DType, DType]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    mode: ConvolutionMode
    math: MathType
    has_groups: bool
    sees_one_channel: bool
    inside: tuple[bool, bool, bool]


_INPUT_NAMES = {
    Direction.FORWARD: ("x", "w"),
    Direction.BACKWARD_DATA: ("w", "dy"),
    Direction.BACKWARD_FILTER: ("x", "dy"),
}
_OUTPUT_NAMES = {Direction.FORWARD: ("y",), Direction.BACKWARD_DATA: ("dx",), Direction.BACKWARD_FILTER: ("dw",)}

_OF_INT8 = (DType.INT8, DType.INT32, DType.FLOAT32)
"""What y may be where x and w are int8."""


@dataclass(frozen=True, slots=True)
class ConvolutionProblem(HashedOnce):
    """One of the three directions of a convolution; the geometry is that of the forward one.

    The three have one floating-point dtype; BACKWARD_FILTER, the filter gradient may have its compute type instead, where it is not
    rounded to 16 bits. FORWARD, x and w may be int8 instead and y int8, int32 or float32: the products are
    added up exactly; int8 is rounded to even and saturated.

    Args:
        direction: FORWARD computes y from (x, w), BACKWARD_DATA x from (w, y), BACKWARD_FILTER w from (x, y); backward,
            the three stand for the gradients dx, dw, dy where they are gradients.
        x: [N, C, *input].
        w: [K, C/G, *filter].
        y: [N, K, *output].
        convolution: Padding, stride, dilation, groups, mode, math.
    """

    direction: Direction
    x: TensorDescriptor
    w: TensorDescriptor
    y: TensorDescriptor
    convolution: ConvolutionDescriptor
    in_place: ClassVar[frozenset[tuple[str, str]]] = frozenset()

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        if self.direction.__class__ is not Direction:
            settle(self, direction=member(Direction, self.direction))
        self._check_dtypes()
        expected = self.convolution.output_shape(self.x.shape, self.w.shape)
        if self.y.shape != expected:
            raise BadParamError(f"y has shape {self.y.shape} but x {self.x.shape} and w {self.w.shape} give {expected}")
        (output,) = self.outputs
        writable(output=output)

    def _check_dtypes(self) -> None:
        if self.x.dtype.is_floating:
            if self.direction is Direction.BACKWARD_FILTER and self.w.dtype is self.x.dtype.compute:
                one_dtype(x=self.x, y=self.y)
            else:
                one_dtype(x=self.x, w=self.w, y=self.y)
            return
        if self.direction is not Direction.FORWARD:
            raise BadParamError(f"x is {self.x.dtype.value}; {self.direction.value} needs a floating-point dtype")
        if self.x.dtype is not DType.INT8 or self.w.dtype is not DType.INT8:
            raise BadParamError(f"x is {self.x.dtype.value} and w {self.w.dtype.value}; of integers both must be int8")
        if self.y.dtype not in _OF_INT8:
            names = ", ".join(dtype.value for dtype in _OF_INT8)
            raise BadParamError(f"y is {self.y.dtype.value} but x and w are int8, which needs one of {names}")

    @property
    def kind(self) -> ConvolutionKind:
        """What it has in common with convolutions of other extents."""
        x, w, y, conv = self.x, self.w, self.y, self.convolution
        return ConvolutionKind(
            self.direction,
            (x.dtype, w.dtype, y.dtype),
            w.shape[2:],
            conv.stride,
            conv.dilation,
            conv.mode,
            conv.math,
            conv.groups > 1,
            w.shape[1] == 1,
            (
                x.strides[1] == 1 or x.shape[1] == 1,
                w.strides[1] == 1 or w.shape[1] == 1,
                y.strides[1] == 1 or y.shape[1] == 1,
            ),
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, as the gradients that they are backward."""
        return _INPUT_NAMES[self.direction]

    @property
    def output_names(self) -> tuple[str, ...]:
        """Name of the output."""
        return _OUTPUT_NAMES[self.direction]

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read."""
        if self.direction is Direction.FORWARD:
            return self.x, self.w
        return (self.w, self.y) if self.direction is Direction.BACKWARD_DATA else (self.x, self.y)

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptor of what is written."""
        if self.direction is Direction.FORWARD:
            return (self.y,)
        return (self.x,) if self.direction is Direction.BACKWARD_DATA else (self.w,)

    @property
    def macs(self) -> int:
        """Multiply-adds of the direct method, padding counted as if it were data."""
        return self.y.size * math.prod(self.w.shape[1:])
