"""Depthwise convolution of small planes with 5x5 and 7x7 filters of stride 1: planes in shared memory, two rows per thread."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.convolution.depthwise_segments import (
    FORMS,
    MAX_THREADS,
    Segments,
    in_pairs,
    least_seconds_of_taps,
    why_no_planes,
)
from dnncore.cuda.convolution.depthwise_tiles import filter_fields, step
from dnncore.cuda.gemm import BLEND_AND_EPILOGUE
from dnncore.cuda.params import ADDRESS, SMALL_DIVISOR, c_type, generate, record, small_divisor, struct
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["DEPTHWISE_PLANES"]

_ROWS = 2
"""kPairOfRows in depthwise_planes.cuh."""

_SHARED_BYTES = 48 * 1024
"""Of a block, so that a multiprocessor has several."""

_WARP, _VECTOR_BYTES = 32, 16
_FEW_THREADS = 384
"""Of a multiprocessor, whose arithmetic and loads take turns in them."""

_MAX_PLANES = 2**31

# Fitted to layers of 5x5 and 7x7 filters in fp16 on an H200: what a product and an output cost, in products at the device's rate in
# float32. Assumed: the share of memory's rate.
_PER_PRODUCT, _PER_OUTPUT, _OF_MEMORY_RATE = 2.4, 40.0, 0.7

_PARAMS = struct(
    *BLEND_AND_EPILOGUE,
    ("source", ADDRESS),
    ("w", ADDRESS),
    ("output", ADDRESS),
    ("source_image", "<i8"),
    ("source_channel", "<i8"),
    ("source_row", "<i8"),
    ("output_image", "<i8"),
    ("output_channel", "<i8"),
    ("output_row", "<i8"),
    ("w_filter", "<i8"),
    ("w_offset", "<i8"),
    ("w_row", "<i4"),
    ("w_column", "<i4"),
    ("source_rows", "<i4"),
    ("source_columns", "<i4"),
    ("output_rows", "<i4"),
    ("output_columns", "<i4"),
    ("padding_rows", "<i4"),
    ("padding_columns", "<i4"),
    ("wide", "<i4"),
    ("source_segments", SMALL_DIVISOR),
    ("output_segments", "<i4"),
    ("slots", "<i4"),
    ("pitch", "<i4"),
    ("plane", "<i4"),
    ("planes", "<i4"),
    ("channels", SMALL_DIVISOR),
    ("in_pairs", "<i4"),
    ("is_packed", "<i4"),
)


@dataclass(frozen=True, slots=True)
class _Planes:
    """How a problem is cut into blocks. Immutable.

    Args:
        segments: Of what is read, and of what is written.
        members: Planes of a block.
    """

    segments: Segments
    members: int

    @classmethod
    def of(cls, problem: ConvolutionProblem) -> _Planes | None:
        """The cut whose warps waste least; None where a plane is too large for a block, or padding wider than its filter."""
        (top, _), (left, _) = problem.convolution.padding
        size, source, output = problem.w.shape[2], problem.x, problem.y
        if problem.direction is Direction.BACKWARD_DATA:
            source, output, top, left = output, source, size - 1 - top, size - 1 - left
        segments = Segments(source, output, size, (top, left))
        one = cls(segments, 1)
        most = min(MAX_THREADS // one.slots, _SHARED_BYTES // one.shared_bytes, one.planes)
        if min(top, left) < 0 or most < 1:
            return None
        cuts = (cls(segments, n) for n in range(most // 2 + 1, most + 1))
        return min(cuts, key=lambda cut: (cut.waste, -cut.members))

    @property
    def slots(self) -> int:
        """Threads of a plane."""
        return -(-self.segments.output.shape[2] // _ROWS) * self.segments.output_segments

    @property
    def planes(self) -> int:
        """Of all images."""
        images, channels = self.segments.output.shape[:2]
        return images * channels

    @property
    def plane(self) -> int:
        """Elements in shared memory, of a row more where the last pair has one; an odd number of words, as of a row."""
        cut = self.segments
        elements = (cut.rows + cut.output.shape[2] % _ROWS) * cut.pitch
        return elements + (0 if (elements // cut.word) % 2 else cut.word)

    @property
    def shared_bytes(self) -> int:
        """The planes, and the filters as they are multiplied."""
        dtype = self.segments.source.dtype
        weights = self.members * self.segments.filter**2 * dtype.compute.itemsize
        planes = self.members * self.plane * dtype.itemsize
        return sum(-(-nbytes // _VECTOR_BYTES) * _VECTOR_BYTES for nbytes in (weights, planes))

    @property
    def waste(self) -> float:
        """How many times as long it takes for threads and columns that have nothing to do."""
        _, _, rows, columns = self.segments.output.shape
        threads = self.members * self.slots
        return self.slots * _ROWS * self.segments.wide / (rows * columns) * (-(-threads // _WARP) * _WARP / threads)

    def seconds(self, figures: DeviceFigures) -> float:
        """The launch, and arithmetic or memory, whichever takes longer."""
        source, output = self.segments.source, self.segments.output
        rate = figures.products_per_second(Maths.FP32)
        work = output.size * (_PER_OUTPUT + self.segments.filter**2 * _PER_PRODUCT) * self.waste / rate
        idle = max(1.0, figures.multiprocessors * _FEW_THREADS / (self.planes * self.slots))
        memory = (source.nbytes + output.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return figures.launch_seconds + max(work * idle, memory)


def _is_packed(tensor: TensorDescriptor) -> bool:
    return tensor.strides == TensorDescriptor.packed(tensor.shape, tensor.dtype).strides


@dataclass(frozen=True, slots=True)
class DepthwisePlanes(Bounded, Selective):
    """Two rows of outputs per thread, planes in shared memory; forward, and backward-data. Immutable."""

    name: str = "depthwise_planes"

    def suits(self, kind: ConvolutionKind) -> bool:
        """Those whose filters see one channel each, but for filter gradients."""
        return kind.sees_one_channel and kind.direction is not Direction.BACKWARD_FILTER

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What the taps take at least."""
        return least_seconds_of_taps(problem, figures)

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """For any addresses, without workspace."""
        if problem.direction is Direction.BACKWARD_FILTER:
            return "it is for outputs and gradients of images, not of filters"
        reason = why_no_planes(problem)
        if reason is not None:
            return reason
        planes = _Planes.of(problem)
        if planes is None or planes.planes >= _MAX_PLANES:
            return f"planes of x {problem.x.shape} with padding {problem.convolution.padding} do not fit blocks"
        return Offer(planes.seconds(figures), partial(_prepare, problem, planes, figures))

    def units(self) -> tuple[Unit, ...]:
        """Every unit that it can launch."""
        return tuple(itertools.starmap(_unit, FORMS))


def _prepare(problem: ConvolutionProblem, planes: _Planes, figures: DeviceFigures) -> Calls:
    cut, backward = planes.segments, problem.direction is Direction.BACKWARD_DATA
    source, output = cut.source, cut.output
    params = record(
        _PARAMS,
        source_image=step(source, 0),
        source_channel=step(source, 1),
        source_row=step(source, 2),
        output_image=step(output, 0),
        output_channel=step(output, 1),
        output_row=step(output, 2),
        **filter_fields(problem, turned=backward),
        source_rows=source.shape[2],
        source_columns=source.shape[3],
        output_rows=output.shape[2],
        output_columns=output.shape[3],
        padding_rows=cut.before[0],
        padding_columns=cut.before[1],
        wide=cut.wide,
        source_segments=small_divisor(cut.source_segments),
        output_segments=cut.output_segments,
        slots=planes.slots,
        pitch=cut.pitch,
        plane=planes.plane,
        planes=planes.planes,
        channels=small_divisor(output.shape[1]),
        in_pairs=in_pairs(source),
        is_packed=_is_packed(output),
    )
    return kernel_call(
        _unit(source.dtype, cut.filter),
        -(-planes.planes // planes.members),
        planes.members * planes.slots,
        params,
        in_order("w", "source", "output") if backward else in_order("source", "w", "output"),
        shared_bytes=planes.shared_bytes,
        starts_early=figures.starts_early,
    )


def _unit(dtype: DType, size: int) -> Unit:
    return generate(
        header="dnncore/convolution/depthwise_planes.cuh",
        entry=f"convolution_depthwise_planes_{size}x{size}_{c_type(dtype)}",
        function=f"depthwise::small_planes<{c_type(dtype)}, {size}>",
        struct_name="depthwise::PlaneParams",
        dtype=_PARAMS,
        threads=MAX_THREADS,
        starts_early=True,
    )


DEPTHWISE_PLANES = DepthwisePlanes()
