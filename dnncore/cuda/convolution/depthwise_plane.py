"""A depthwise convolution seen as two axes, one along which threads keep in registers what they read, and one across."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dnncore.cuda.calls import Calls, Place, WhereAligned
from dnncore.cuda.geometry import taps
from dnncore.cuda.params import struct
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["AXIS", "SHARED_BYTES", "Axis", "Plane", "parts_for", "vector_width", "when_aligned", "where"]

SHARED_BYTES = 48 * 1024
"""Shared memory that a block may have on every device."""

_MAX_VECTORS = 32
_WASTE = 8
"""Of a chunk's vectors at most one in so many may be missing."""

_THREADS = 256
"""Of which as many blocks as a multiprocessor has threads for keep it busy, however many their own are."""

AXIS = struct(
    ("source", "<i4"),
    ("output", "<i4"),
    ("filter", "<i4"),
    ("padding", "<i4"),
    ("stride", "<i4"),
    ("dilation", "<i4"),
    ("tap_step", "<i4"),
    ("taps_a_class", "<i4"),
    ("longer_classes", "<i4"),
    ("place_step", "<i4"),
    ("common", "<i4"),
    ("source_stride", "<i4"),
    ("output_stride", "<i4"),
    ("filter_stride", "<i4"),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """A spatial dimension, in the order of AXIS. Immutable.

    Args:
        source: Extent of what is read.
        output: Extent of what is written, or walked over.
        filter: Taps.
        padding: Places in front of x.
        stride: The convolution's.
        dilation: The convolution's.
        tap_step: Stride over their greatest common divisor: taps that far apart see the same places of the source.
        taps_a_class: Taps over tap_step, rounded down.
        longer_classes: Of the classes of every tap_step-th tap, these have one tap more.
        place_step: Dilation over their greatest common divisor.
        common: Least common multiple of stride and dilation.
        source_stride: Elements from place to place; 0 where there is only one.
        output_stride: Likewise.
        filter_stride: Elements from tap to tap, negative in a true convolution; 0 where there is only one.
    """

    source: int = 1
    output: int = 1
    filter: int = 1
    padding: int = 0
    stride: int = 1
    dilation: int = 1
    tap_step: int = 1
    taps_a_class: int = 1
    longer_classes: int = 0
    place_step: int = 1
    common: int = 1
    source_stride: int = 0
    output_stride: int = 0
    filter_stride: int = 0

    @property
    def values(self) -> tuple[int, ...]:
        """For a field of dtype AXIS."""
        return tuple(getattr(self, name) for name in AXIS.fields or ())


def vector_width(dtype: DType) -> int:
    """Channels that a thread takes at a time: 16 bytes of the compute type."""
    return 16 // dtype.compute.itemsize


def parts_for(figures: DeviceFigures, count: int, blocks: int) -> int:
    """Into how many parts something of which there are `count` is cut so that `blocks` times as many blocks keep a GPU busy."""
    wanted = figures.multiprocessors * (figures.threads_per_multiprocessor // _THREADS)
    return max(min(-(-wanted // max(blocks, 1)), count), 1)


def where(alignments: tuple[tuple[Place, int], ...], aligned: Calls, otherwise: Calls) -> Calls:
    """Choose by the alignment of addresses, where there is a choice."""
    return aligned if aligned == otherwise else (WhereAligned(alignments, aligned, otherwise),)


def when_aligned(problem: ConvolutionProblem, vectors: Calls, alone: Calls) -> Calls:
    """The kernel of vectors where every address is a multiple of a vector's size, the other one elsewhere."""
    nbytes = vector_width(problem.x.dtype) * problem.x.dtype.itemsize
    operands = range(len(problem.inputs) + len(problem.outputs))
    return where(tuple((Place(operand), nbytes) for operand in operands), vectors, alone)


@dataclass(frozen=True, slots=True)
class Plane:
    """A problem seen as two axes. Immutable.

    Args:
        source: What is read at many places: x, or dy for backward-data.
        output: What is written, or walked over: y, or dx for backward-data, or dy for the filter gradient.
        width: The last spatial dimension.
        height: The other one; a single place where there is none.
        w_offset: Elements from w's address to its tap 0.
        vectors: Vectors of channels of a block; 0 where threads take one channel.
    """

    source: TensorDescriptor
    output: TensorDescriptor
    width: Axis
    height: Axis
    w_offset: int
    vectors: int

    @classmethod
    def of(cls, problem: ConvolutionProblem) -> Plane:
        """With vectors of channels where there can be any."""
        w = problem.w
        source, output = (problem.x, problem.y)
        if problem.direction is Direction.BACKWARD_DATA:
            source, output = output, source
        w_offset, steps = taps(w.shape[2:], w.strides[2:], problem.convolution)
        *heights, width = (_axis(problem, source, output, i, step) for i, step in enumerate(steps))
        return cls(source, output, width, heights[0] if heights else Axis(), w_offset, _vectors(problem))

    def alone(self) -> Plane:
        """The same with one channel per thread."""
        return replace(self, vectors=0) if self.vectors else self

    @property
    def rows_of_columns(self) -> tuple[Axis, Axis]:
        """(along, across) in row-major order, whatever the strides are."""
        return self.width, self.height

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """(along, across): threads that take one channel are neighbours along what has the smaller stride in the output."""
        one_row = self.output.ndim == 3
        if not self.vectors and (one_row or self.output.strides[-1] <= self.output.strides[-2]):
            return self.height, self.width
        return self.rows_of_columns


def _axis(
    problem: ConvolutionProblem, source: TensorDescriptor, output: TensorDescriptor, i: int, filter_stride: int
) -> Axis:
    conv = problem.convolution
    stride, dilation = conv.stride[i], conv.dilation[i]
    shared, taps = math.gcd(stride, dilation), problem.w.shape[2 + i]
    tap_step = stride // shared
    return Axis(
        source=source.shape[2 + i],
        output=output.shape[2 + i],
        filter=taps,
        padding=conv.padding[i][0],
        stride=stride,
        dilation=dilation,
        tap_step=tap_step,
        taps_a_class=taps // tap_step,
        longer_classes=taps % tap_step,
        place_step=dilation // shared,
        common=stride * dilation // shared,
        # What is never stepped over may have any stride.
        source_stride=source.strides[2 + i] if source.shape[2 + i] > 1 else 0,
        output_stride=output.strides[2 + i] if output.shape[2 + i] > 1 else 0,
        filter_stride=filter_stride if taps > 1 else 0,
    )


def _vectors(problem: ConvolutionProblem) -> int:
    """Vectors of channels that a block takes, a power of two, where there can be such vectors and their filters fit; else 0."""
    width, channels = vector_width(problem.x.dtype), problem.x.shape[1]
    if problem.w.shape[0] != channels or channels % width or not channels:
        return 0
    for tensor in (problem.x, problem.y):
        others = [tensor.strides[axis] for axis in range(tensor.ndim) if axis != 1 and tensor.shape[axis] > 1]
        if tensor.strides[1] != 1 or any(stride % width for stride in others):
            return 0
    vectors = _vectors_of_chunks(channels // width)
    if problem.direction is Direction.BACKWARD_FILTER:
        return vectors
    bytes_a_vector = math.prod(problem.w.shape[2:]) * width * problem.x.dtype.compute.itemsize
    while vectors and vectors * bytes_a_vector > SHARED_BYTES:
        vectors //= 2
    return vectors


def _vectors_of_chunks(vectors: int) -> int:
    """The largest power of two that cuts so many vectors into chunks of which hardly one is partly empty."""
    size = min(1 << (vectors - 1).bit_length(), _MAX_VECTORS)
    while size > 1 and -vectors % size > vectors // _WASTE:
        size //= 2
    return size
