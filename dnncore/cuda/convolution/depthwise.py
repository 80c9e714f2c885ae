"""Depthwise convolution: one channel per group, any number of filters for it; up to two spatial dimensions, every direction.

Where channels are innermost in both images, threads take vectors of them; else they are neighbours along the width, or along
whichever dimension has the smaller stride in what is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import Selective
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.convolution.depthwise_filter import FilterCuts, filter_units, prepare_filter
from dnncore.cuda.convolution.depthwise_plane import AXIS, Plane, parts_for, vector_width, when_aligned
from dnncore.cuda.convolution.depthwise_rows import Rows, prepare_rows, row_units, where_by_rows
from dnncore.cuda.convolution.depthwise_tiles import Tiles, prepare_tiles, tile_units, where_tiled
from dnncore.cuda.gemm import BLEND_AND_EPILOGUE
from dnncore.cuda.params import (
    ADDRESS,
    DIVISOR,
    FLOATING,
    SMALL_DIVISOR,
    c_type,
    divisor,
    generate,
    record,
    small_divisor,
    struct,
)
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["DEPTHWISE", "DepthwiseConvolution"]

_THREADS = 128
_OUTPUTS_ALONE, _OUTPUTS_OF_VECTORS = 8, 4
"""kOutputs: a strip of one channel, and one of a vector of channels, whose registers are fewer."""

# Measured on an H200 with 3x3, 5x5 and 7x7 filters in float32, and rounded up: what an element and a product cost, in products at
# the device's rate in float32; the rate of memory.
_PER_ELEMENT, _PER_PRODUCT = 50.18, 11.71
_OF_MEMORY_RATE = 0.5869

_COORDINATES = 2**31
_MAX_EXTENT = 2**31

_PARAMS = struct(
    *BLEND_AND_EPILOGUE,
    ("source", ADDRESS),
    ("w", ADDRESS),
    ("output", ADDRESS),
    ("source_image", "<i8"),
    ("source_channel", "<i8"),
    ("output_image", "<i8"),
    ("output_channel", "<i8"),
    ("w_filter", "<i8"),
    ("w_offset", "<i8"),
    ("along", AXIS),
    ("across", AXIS),
    ("strips", DIVISOR),
    ("across_places", DIVISOR),
    ("channels", DIVISOR),
    ("multiplier", SMALL_DIVISOR),
    ("count", "<i8"),
    ("backward", "<i4"),
    ("chunks", "<i4"),
    ("vectors", "<i4"),
    ("groups", "<i4"),
    ("rows", "<i4"),
    ("channels_innermost", "<i4"),
)


def _unit(dtype: DType, *, vectors: bool) -> Unit:
    kind, width, outputs = (
        ("channels", f", {vector_width(dtype)}", _OUTPUTS_OF_VECTORS) if vectors else ("places", "", _OUTPUTS_ALONE)
    )
    return generate(
        header="dnncore/convolution/depthwise.cuh",
        entry=f"convolution_depthwise_data_{kind}_{c_type(dtype)}",
        function=f"depthwise::strips_of_{kind}<{c_type(dtype)}{width}, {outputs}>",
        struct_name="depthwise::DataParams",
        dtype=_PARAMS,
        threads=_THREADS,
        starts_early=True,
    )


def _prepare_strips(problem: ConvolutionProblem, plane: Plane, figures: DeviceFigures) -> Calls:
    w, dtype = problem.w, problem.x.dtype
    along, across = plane.axes
    backward = problem.direction is Direction.BACKWARD_DATA
    images, channels = plane.output.shape[:2]
    spacing = along.common if backward else along.place_step
    outputs = _OUTPUTS_OF_VECTORS if plane.vectors else _OUTPUTS_ALONE
    strips, places = -(-along.output // (spacing * outputs)) * spacing, across.output
    params = record(
        _PARAMS,
        source_image=plane.source.strides[0],
        source_channel=plane.source.strides[1],
        output_image=plane.output.strides[0],
        output_channel=plane.output.strides[1],
        w_filter=w.strides[0],
        w_offset=plane.w_offset,
        along=along.values,
        across=across.values,
        strips=divisor(strips),
        across_places=divisor(places),
        channels=divisor(channels),
        multiplier=small_divisor(w.shape[0] // problem.convolution.groups),
        backward=backward,
        channels_innermost=plane.output.strides[1] < min(plane.output.strides[2:]),
    )
    unit = _unit(dtype, vectors=plane.vectors > 0)
    fields = in_order("w", "source", "output") if backward else in_order("source", "w", "output")
    if not plane.vectors:
        params["count"] = count = images * channels * strips * places
        blocks = blocks_for(figures, count, _THREADS)
        return kernel_call(unit, blocks, _THREADS, params, fields, starts_early=figures.starts_early)
    width = plane.vectors * vector_width(dtype)
    count, chunks = images * strips, -(-channels // width)
    groups = -(-count // (_THREADS // plane.vectors))
    rows = -(-places // parts_for(figures, places, chunks * groups)) if places else 1
    params["count"], params["chunks"], params["groups"] = count, chunks, groups
    params["vectors"], params["rows"] = plane.vectors, rows
    blocks = chunks * groups * -(-places // rows)
    shared = math.prod(w.shape[2:]) * width * dtype.compute.itemsize
    return kernel_call(unit, blocks, _THREADS, params, fields, shared_bytes=shared, starts_early=figures.starts_early)


def _prepare(
    problem: ConvolutionProblem, plane: Plane, rows: Rows | None, tiles: Tiles | None, figures: DeviceFigures
) -> Calls:
    otherwise = _prepare_in_registers(problem, plane, tiles, figures)
    return where_by_rows(problem, prepare_rows(problem, rows, figures), otherwise) if rows else otherwise


def _prepare_in_registers(
    problem: ConvolutionProblem, plane: Plane, tiles: Tiles | None, figures: DeviceFigures
) -> Calls:
    strips = _prepare_strips(problem, plane.alone(), figures)
    if tiles:
        return where_tiled(tiles, prepare_tiles(problem, tiles, figures), strips, problem.direction)
    return when_aligned(problem, _prepare_strips(problem, plane, figures), strips) if plane.vectors else strips


def _why_not(problem: ConvolutionProblem) -> str | None:
    """None where the kernels can solve it, else the reason why not."""
    conv = problem.convolution
    if problem.w.shape[1] != 1:
        return f"each filter sees {problem.w.shape[1]} channels; depthwise ones see 1"
    if conv.spatial_ndim > 2:
        return f"{conv.spatial_ndim} spatial dimensions; at most 2"
    if not problem.x.dtype.is_floating:
        return f"x is {problem.x.dtype.value}; a floating-point type is needed"
    largest = max(tensor.extent for tensor in (problem.x, problem.w, problem.y))
    if largest >= _MAX_EXTENT:
        return f"a tensor spans {largest} elements; offsets have 32 bits"
    reach = max(
        extent + sum(padding) + 2 * _OUTPUTS_ALONE * stride * dilation
        for extent, padding, stride, dilation in zip(
            problem.x.shape[2:], conv.padding, conv.stride, conv.dilation, strict=True
        )
    )
    if reach >= _COORDINATES:
        return f"its coordinates reach {reach}; they have 32 bits"
    furthest = max(
        2 * _OUTPUTS_ALONE * stride * dilation * max(x_stride, y_stride) * problem.x.dtype.itemsize
        for stride, dilation, x_stride, y_stride in zip(
            conv.stride, conv.dilation, problem.x.strides[2:], problem.y.strides[2:], strict=True
        )
    )
    return f"steps along an axis are up to {furthest} B; they have 32 bits" if furthest >= _COORDINATES else None


def _seconds_of_strips(problem: ConvolutionProblem, figures: DeviceFigures) -> float:
    """The launch, and arithmetic or memory, whichever takes longer."""
    x, y = problem.x, problem.y
    products = y.size * math.prod(problem.w.shape[2:])
    work = max(x.size, y.size) * _PER_ELEMENT + products * _PER_PRODUCT
    memory = (x.size + y.size) * x.dtype.itemsize / (figures.bytes_per_second * _OF_MEMORY_RATE)
    return figures.launch_seconds + max(work / figures.products_per_second(Maths.FP32), memory)


@dataclass(frozen=True, slots=True)
class DepthwiseConvolution(Selective):
    """Strips of outputs, or of taps, in registers. Immutable."""

    name: str = "depthwise"

    def suits(self, kind: ConvolutionKind) -> bool:
        """Those whose filters see one channel each."""
        return kind.sees_one_channel and len(kind.taps) <= 2 and kind.dtypes[0].is_floating

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """For filters that see one channel each; the filter gradient leaves parts in the workspace."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        if problem.direction is Direction.BACKWARD_FILTER:
            cuts = FilterCuts.of(problem, figures)
            seconds = cuts.tiles.seconds(figures) if cuts.tiles else _seconds_of_strips(problem, figures)
            return Offer(seconds, partial(prepare_filter, problem, cuts), cuts.workspace_bytes(problem))
        plane = Plane.of(problem)
        rows, tiles = Rows.of(problem, plane, figures), Tiles.of(problem, plane)
        best = rows or tiles
        seconds = best.seconds(figures) if best else _seconds_of_strips(problem, figures)
        return Offer(seconds, partial(_prepare, problem, plane, rows, tiles, figures))

    def units(self) -> tuple[Unit, ...]:
        """Every unit that it can launch."""
        return (
            *(_unit(dtype, vectors=vectors) for dtype in FLOATING for vectors in (False, True)),
            *row_units(),
            *tile_units(),
            *filter_units(),
        )


DEPTHWISE = DepthwiseConvolution()
