"""Convolution: one geometry, three directions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems.problem import same_dtype, writable

__all__ = ["ConvolutionProblem", "Direction"]


class Direction(Enum):
    """Which of the three tensors of a convolution is computed from the other two."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_FILTER = "backward_filter"


@dataclass(frozen=True, slots=True)
class ConvolutionProblem:
    """One of the three directions of a convolution; the geometry is that of the forward one.

    Args:
        direction: FORWARD computes y from (x, w), BACKWARD_DATA x from (w, y), BACKWARD_FILTER w from (x, y); backward,
            the three stand for the gradients dx, dw, dy where they are gradients.
        x: [N, C, *input].
        w: [K, C/G, *filter].
        y: [N, K, *output].
        convolution: Padding, stride, dilation, groups, mode.
    """

    direction: Direction
    x: TensorDescriptor
    w: TensorDescriptor
    y: TensorDescriptor
    convolution: ConvolutionDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x or w", "w or dy")

    def __post_init__(self) -> None:
        same_dtype(x=self.x, w=self.w, y=self.y)
        expected = self.convolution.output_shape(self.x.shape, self.w.shape)
        if self.y.shape != expected:
            raise BadParamError(f"y has shape {self.y.shape} but x {self.x.shape} and w {self.w.shape} give {expected}")
        (output,) = self.outputs
        writable(output=output)

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read."""
        return {
            Direction.FORWARD: (self.x, self.w),
            Direction.BACKWARD_DATA: (self.w, self.y),
            Direction.BACKWARD_FILTER: (self.x, self.y),
        }[self.direction]

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptor of what is written."""
        return {
            Direction.FORWARD: (self.y,),
            Direction.BACKWARD_DATA: (self.x,),
            Direction.BACKWARD_FILTER: (self.w,),
        }[self.direction]

    @property
    def macs(self) -> int:
        """Multiply-adds of the direct method, padding counted as if it were data."""
        taps = 1
        for extent in self.w.shape[1:]:
            taps *= extent
        return self.y.size * taps
