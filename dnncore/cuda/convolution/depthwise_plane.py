"""A depthwise convolution seen as two axes, one along which threads keep in registers what they read, and one across."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.geometry import taps
from dnncore.cuda.params import record, struct
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["AXIS", "SHARED_BYTES", "Plane", "parts_for", "vector_width", "when_aligned"]

SHARED_BYTES = 48 * 1024
"""Shared memory that a block may have."""

_MAX_VECTORS = 32
_WASTE = 8
"""Of a chunk's vectors at most one in so many may be missing."""

_BLOCKS = 132 * 8
"""What keeps an H200 busy."""

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


def vector_width(dtype: DType) -> int:
    """Channels that a thread takes at a time: 16 bytes of the compute type."""
    return 16 // dtype.compute.itemsize


def parts_for(count: int, blocks: int) -> int:
    """Into how many parts something of which there are `count` is cut so that `blocks` times as many blocks keep a GPU busy."""
    return max(min(-(-_BLOCKS // max(blocks, 1)), count), 1)


def when_aligned(problem: ConvolutionProblem, vectors: Launch, alone: Launch) -> Launch:
    """Launch the kernel of vectors where every address is a multiple of a vector's size, the other one elsewhere."""
    nbytes = vector_width(problem.x.dtype) * problem.x.dtype.itemsize

    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        aligned = all(address % nbytes == 0 for address in (*inputs, *outputs))
        (vectors if aligned else alone)(stream, alpha, inputs, beta, outputs, workspace)

    return launch


@dataclass(frozen=True, slots=True)
class Plane:
    """A problem seen as two axes. Immutable.

    Args:
        source: What is read at many places: x, or dy for backward-data.
        output: What is written, or walked over: y, or dx for backward-data, or dy for the filter gradient.
        axes: (along, across), each an AXIS.
        w_offset: Elements from w's address to its tap 0.
        vectors: Vectors of channels of a block; 0 where threads take one channel.
    """

    source: TensorDescriptor
    output: TensorDescriptor
    axes: tuple[np.ndarray, np.ndarray]
    w_offset: int
    vectors: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, *, may_have_vectors: bool = True) -> Plane:
        """Choose which axis is which."""
        x, w, y = problem.x, problem.w, problem.y
        source, output = (y, x) if problem.direction is Direction.BACKWARD_DATA else (x, y)
        w_offset, steps = taps(w.shape[2:], w.strides[2:], problem.convolution)
        width, height = cls.rows_of_columns(problem)
        vectors = _vectors(problem) if may_have_vectors else 0
        if vectors:
            return cls(source, output, (width, height), w_offset, vectors)
        innermost_last = len(steps) == 1 or output.strides[-1] <= output.strides[-2]
        return cls(source, output, (height, width) if innermost_last else (width, height), w_offset, 0)

    @staticmethod
    def rows_of_columns(problem: ConvolutionProblem) -> tuple[np.ndarray, np.ndarray]:
        """The axes in row-major order: (width, height), whatever the strides are."""
        source, output = (
            (problem.y, problem.x) if problem.direction is Direction.BACKWARD_DATA else (problem.x, problem.y)
        )
        _, steps = taps(problem.w.shape[2:], problem.w.strides[2:], problem.convolution)
        *heights, width = (_axis(problem, source, output, i, step) for i, step in enumerate(steps))
        return width, heights[0] if heights else _NO_AXIS


_NO_AXIS = record(
    AXIS, source=1, output=1, filter=1, stride=1, dilation=1, tap_step=1, taps_a_class=1, place_step=1, common=1
)


def _axis(
    problem: ConvolutionProblem, source: TensorDescriptor, output: TensorDescriptor, i: int, filter_stride: int
) -> np.ndarray:
    conv = problem.convolution
    stride, dilation = conv.stride[i], conv.dilation[i]
    shared, taps = math.gcd(stride, dilation), problem.w.shape[2 + i]
    tap_step = stride // shared
    return record(
        AXIS,
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
