"""Depthwise convolution: one channel a group, any number of filters for it; up to two spatial dimensions, every direction.

Where channels are innermost in both images, threads take vectors of them; else they are neighbours along the width, or along
whichever dimension has the smaller stride in what is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnncore.backend import Launch
from dnncore.cuda.convolution.depthwise_filter import filter_units, filter_workspace_bytes, prepare_filter
from dnncore.cuda.convolution.depthwise_plane import AXIS, Plane, parts_for, vector_width, when_aligned
from dnncore.cuda.convolution.depthwise_tiles import Tiles, prepare_tiles, tile_units, where_aligned
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
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
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["DEPTHWISE", "DepthwiseConvolution"]

_THREADS = 128
_OUTPUTS_ALONE, _OUTPUTS_OF_VECTORS = 8, 4
"""kOutputs: a strip of one channel, and one of a vector of channels, whose registers are fewer."""

# Measured on an H200 with 3x3, 5x5 and 7x7 filters in float32, and rounded up.
_SECONDS_AN_ELEMENT, _SECONDS_A_PRODUCT = 1.5e-12, 0.35e-12
_BYTES_PER_SECOND = 2.5e12
_LAUNCH_SECONDS = 4e-6

_COORDINATES = 2**31
_MAX_EXTENT = 2**31

_PARAMS = struct(
    *BLEND,
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
    )


def _prepare(problem: ConvolutionProblem, plane: Plane, device: CudaDevice) -> Launch:
    w = problem.w
    along, across = plane.axes
    backward = problem.direction is Direction.BACKWARD_DATA
    multiplier = w.shape[0] // problem.convolution.groups
    images, channels = plane.output.shape[:2]
    spacing = int(along["common" if backward else "place_step"])
    outputs = _OUTPUTS_OF_VECTORS if plane.vectors else _OUTPUTS_ALONE
    strips = -(-int(along["output"]) // (spacing * outputs)) * spacing
    params = record(
        _PARAMS,
        source_image=plane.source.strides[0],
        source_channel=plane.source.strides[1],
        output_image=plane.output.strides[0],
        output_channel=plane.output.strides[1],
        w_filter=w.strides[0],
        w_offset=plane.w_offset,
        along=along,
        across=across,
        strips=divisor(strips),
        across_places=divisor(int(across["output"])),
        channels=divisor(channels),
        multiplier=small_divisor(multiplier),
        backward=backward,
        channels_innermost=plane.output.strides[1] < min(plane.output.strides[2:]),
    )
    kernel = device.kernel(_unit(problem.x.dtype, vectors=plane.vectors > 0))
    inputs = ("w", "source") if backward else ("source", "w")
    places = int(across["output"])
    if not plane.vectors:
        params["count"] = images * channels * strips * places
        grid = (blocks_for(int(params["count"]), _THREADS), 1, 1)
        return single(kernel, grid, (_THREADS, 1, 1), params, inputs, ("output",))
    width = plane.vectors * vector_width(problem.x.dtype)
    params["vectors"], params["chunks"] = plane.vectors, -(-channels // width)
    params["count"] = images * strips
    params["groups"] = -(-images * strips // (_THREADS // plane.vectors))
    blocks = int(params["chunks"]) * int(params["groups"])
    params["rows"] = -(-places // parts_for(places, blocks)) if places else 1
    grid = (blocks * -(-places // int(params["rows"])), 1, 1)
    shared = math.prod(w.shape[2:]) * width * problem.x.dtype.compute.itemsize
    return single(kernel, grid, (_THREADS, 1, 1), params, inputs, ("output",), shared)


@dataclass(frozen=True, slots=True)
class DepthwiseConvolution:
    """Strips of outputs, or of taps, in registers. Immutable."""

    name: str = "depthwise"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: ConvolutionProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 (the Protocol's)
        """None when it can solve the problem, else the reason why not."""
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

    def seconds(self, problem: ConvolutionProblem) -> float:
        """Estimated time on an H200; infinite for what is not depthwise."""
        x, y = problem.x, problem.y
        if problem.w.shape[1] != 1 or problem.convolution.spatial_ndim > 2 or not x.dtype.is_floating:
            return math.inf
        products = y.size * math.prod(problem.w.shape[2:])
        arithmetic = max(x.size, y.size) * _SECONDS_AN_ELEMENT + products * _SECONDS_A_PRODUCT
        return _LAUNCH_SECONDS + max(arithmetic, (x.size + y.size) * x.dtype.itemsize / _BYTES_PER_SECOND)

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:
        """Bytes of the filter gradient's parts; 0 for the other directions."""
        if problem.direction is not Direction.BACKWARD_FILTER:
            return 0
        return filter_workspace_bytes(problem)

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        return (
            *(_unit(dtype, vectors=vectors) for dtype in FLOATING for vectors in (False, True)),
            *tile_units(),
            *filter_units(),
        )

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        if problem.direction is Direction.BACKWARD_FILTER:
            return prepare_filter(problem, device)
        plane, alone = Plane.of(problem), Plane.of(problem, may_have_vectors=False)
        launch = _prepare(problem, alone, device)
        tiles = Tiles.of(problem)
        if tiles:
            return where_aligned(tiles, prepare_tiles(problem, tiles, device), launch, problem.direction)
        return when_aligned(problem, _prepare(problem, plane, device), launch) if plane.vectors else launch


DEPTHWISE = DepthwiseConvolution()
