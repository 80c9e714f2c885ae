"""The filter gradient of a depthwise convolution of small planes with 5x5 and 7x7 filters of stride 1: all taps in registers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.calls import WORKSPACE, Calls, Place, kernel_call
from dnncore.cuda.convolution.depthwise_filter import filter_sum_units, prepare_filter_sum
from dnncore.cuda.convolution.depthwise_plane import Plane
from dnncore.cuda.convolution.depthwise_segments import (
    FORMS,
    MAX_THREADS,
    Segments,
    in_pairs,
    least_seconds_of_taps,
    why_no_planes,
)
from dnncore.cuda.convolution.depthwise_tiles import step
from dnncore.cuda.params import ADDRESS, BLEND, c_type, generate, record, struct
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["DEPTHWISE_PLANES_BACKWARD_FILTER"]

_ENOUGH_THREADS = 384
"""Of a multiprocessor, whose arithmetic goes on while some of them wait."""

_LEAST_PART = 3
"""Images of a block: all but the first come while it computes."""

_VECTOR_BYTES = 16
_RESERVED_BYTES = 1024
"""Of shared memory, per block."""

# Assumed: instructions per product, of which a multiprocessor of Hopper has one a clock and lane, and the share of memory's rate.
_PER_PRODUCT, _OF_MEMORY_RATE = 2.0, 0.7

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("dy", ADDRESS),
    ("parts", ADDRESS),
    ("x_image", "<i8"),
    ("x_channel", "<i8"),
    ("x_row", "<i8"),
    ("dy_image", "<i8"),
    ("dy_channel", "<i8"),
    ("dy_row", "<i8"),
    ("x_rows", "<i4"),
    ("x_columns", "<i4"),
    ("dy_rows", "<i4"),
    ("dy_columns", "<i4"),
    ("padding_rows", "<i4"),
    ("padding_columns", "<i4"),
    ("wide", "<i4"),
    ("x_segments", "<i4"),
    ("dy_segments", "<i4"),
    ("slots", "<i4"),
    ("pitch", "<i4"),
    ("plane", "<i4"),
    ("images", "<i4"),
    ("part", "<i4"),
    ("filters", "<i4"),
    ("chunks", "<i4"),
    ("in_pairs", "<i4"),
)


def _registers(dtype: DType, size: int) -> int:
    """Of a thread, rounded up: as the compiler gives them for sm_90a."""
    few, many = (96, 128) if dtype.itemsize == 2 else (120, 152)
    return few if size == 5 else many


@dataclass(frozen=True, slots=True)
class _Planes:
    """How a problem is cut into channels and parts. Immutable.

    Args:
        segments: Of x, and of dy.
        channels: Of a block.
        figures: Of the device.
    """

    segments: Segments
    channels: int
    figures: DeviceFigures

    @classmethod
    def of(cls, problem: ConvolutionProblem, figures: DeviceFigures) -> _Planes | None:
        """The cut that wastes least; None where a plane has more segments than a block has threads, or no room."""
        (top, _), (left, _) = problem.convolution.padding
        segments = Segments(problem.x, problem.y, problem.w.shape[2], (top, left))
        most = MAX_THREADS // cls(segments, 1, figures).slots
        most = min(most, problem.x.shape[1])
        cuts = (cls(segments, n, figures) for n in range(most // 3 + 1, most + 1))
        return min((cut for cut in cuts if cut.resident), key=lambda cut: cut.waste, default=None)

    @property
    def slots(self) -> int:
        """Threads of a channel: one for each segment of x and of dy."""
        cut = self.segments
        return max(cut.source.shape[2] * cut.source_segments, cut.output.shape[2] * cut.output_segments)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.channels * self.slots

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor."""
        registers = _registers(self.segments.source.dtype, self.segments.filter)
        by_memory = self.figures.shared_bytes // (self.shared_bytes + _RESERVED_BYTES)
        return min(self.figures.resident_blocks(self.threads, registers), by_memory)

    @property
    def chunks(self) -> int:
        """Of channels."""
        return -(-self.segments.source.shape[1] // self.channels)

    @property
    def part(self) -> int:
        """Images of a block: as many as let all blocks run at once."""
        images = self.segments.source.shape[0]
        parts = max(self.figures.multiprocessors * self.resident // self.chunks, 1)
        return max(-(-images // min(parts, images)), min(_LEAST_PART, images))

    @property
    def num_parts(self) -> int:
        """How many there are."""
        return -(-self.segments.source.shape[0] // self.part)

    @property
    def shared_bytes(self) -> int:
        """Two stages of planes, or the sums that come in their place."""
        dtype, taps = self.segments.source.dtype, self.segments.filter**2
        planes = -(-2 * self.channels * self.segments.plane * dtype.itemsize // _VECTOR_BYTES) * _VECTOR_BYTES
        return max(planes, taps * (self.threads | 1) * dtype.compute.itemsize)

    @property
    def waste(self) -> float:
        """How many times as long it takes for threads, columns and multiprocessors that have nothing to do."""
        cut, images = self.segments, self.segments.source.shape[0]
        _, channels, rows, columns = cut.output.shape
        idle = self.figures.multiprocessors * self.resident * self.part / (images * self.chunks)
        return (
            (self.slots * cut.wide / (rows * columns))
            * (self.chunks * self.channels / channels)
            * (-(-self.threads // 32) * 32 / self.threads)
            * max(1.0, _ENOUGH_THREADS / (self.resident * self.threads))
            * max(idle, 1.0)
            * (1 + 1 / self.part)
        )

    @property
    def seconds(self) -> float:
        """Both launches, and arithmetic or memory, whichever takes longer."""
        figures, x, dy = self.figures, self.segments.source, self.segments.output
        work = dy.size * self.segments.filter**2 * _PER_PRODUCT / figures.products_per_second(Maths.FP32)
        memory = (x.nbytes + dy.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return 2 * figures.launch_seconds + max(work, memory) * self.waste


@dataclass(frozen=True, slots=True)
class DepthwisePlanesBackwardFilter(Bounded, Selective):
    """A segment of a row of dy per thread, planes of x in shared memory. Immutable."""

    name: str = "depthwise_planes"

    def suits(self, kind: ConvolutionKind) -> bool:
        """Filter gradients, where each filter sees one channel."""
        return kind.sees_one_channel and kind.direction is Direction.BACKWARD_FILTER

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What the taps take at least."""
        return least_seconds_of_taps(problem, figures)

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """For any addresses; parts are in the workspace."""
        if problem.direction is not Direction.BACKWARD_FILTER:
            return f"it is for filter gradients, not {problem.direction.value}"
        reason = why_no_planes(problem)
        if reason is not None:
            return reason
        planes = _Planes.of(problem, figures)
        if planes is None:
            return f"planes of {problem.x.shape[2]} x {problem.x.shape[3]} are too large for a block"
        parts = planes.num_parts * problem.w.size * problem.x.dtype.compute.itemsize
        return Offer(planes.seconds, partial(_prepare, problem, planes), parts)

    def units(self) -> tuple[Unit, ...]:
        """Every unit that it can launch."""
        return (*itertools.starmap(_unit, FORMS), *filter_sum_units())


def _prepare(problem: ConvolutionProblem, planes: _Planes) -> Calls:
    x, dy, cut = problem.x, problem.y, planes.segments
    params = record(
        _PARAMS,
        alpha=1.0,
        x_image=step(x, 0),
        x_channel=step(x, 1),
        x_row=step(x, 2),
        dy_image=step(dy, 0),
        dy_channel=step(dy, 1),
        dy_row=step(dy, 2),
        x_rows=x.shape[2],
        x_columns=x.shape[3],
        dy_rows=dy.shape[2],
        dy_columns=dy.shape[3],
        padding_rows=cut.before[0],
        padding_columns=cut.before[1],
        wide=cut.wide,
        x_segments=cut.source_segments,
        dy_segments=cut.output_segments,
        slots=planes.slots,
        pitch=cut.pitch,
        plane=cut.plane,
        images=x.shape[0],
        part=planes.part,
        filters=x.shape[1],
        chunks=planes.chunks,
        in_pairs=in_pairs(x, dy),
    )
    to_parts = kernel_call(
        _unit(x.dtype, cut.filter),
        planes.chunks * planes.num_parts,
        planes.threads,
        params,
        {"x": Place(0), "dy": Place(1), "parts": Place(WORKSPACE)},
        blends=False,
        shared_bytes=planes.shared_bytes,
    )
    plane = Plane.of(problem)
    return to_parts + prepare_filter_sum(problem, plane.w_offset, plane.rows_of_columns, planes.num_parts)


def _unit(dtype: DType, size: int) -> Unit:
    return generate(
        header="dnncore/convolution/depthwise_filter_planes.cuh",
        entry=f"convolution_depthwise_filter_planes_{size}x{size}_{c_type(dtype)}",
        function=f"depthwise::filter_of_small_planes<{c_type(dtype)}, {size}>",
        struct_name="depthwise::FilterPlanesParams",
        dtype=_PARAMS,
        threads=MAX_THREADS,
    )


DEPTHWISE_PLANES_BACKWARD_FILTER = DepthwisePlanesBackwardFilter()
