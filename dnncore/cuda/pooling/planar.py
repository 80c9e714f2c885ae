"""Pooling over up to two spatial dimensions, a tile of the output at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    SMALL_DIVISOR,
    c_type,
    divisor,
    generate_together,
    record,
    small_divisor,
    struct,
)
from dnncore.cuda.pooling.problem import DTYPES, MODES, Geometry, PoolingProblem, mode_of, operands_of, window_places
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import PoolingBackwardProblem

__all__ = ["PlanarPooling"]

_THREADS = 128
_STRIP = 4
"""Rows that a thread takes in one column; kStrip in pooling_tiles.cuh."""

_ELEMENTS, _SPREAD_ELEMENTS = 1024, 4096
"""Of a tile. Small ones keep more blocks busy. Where what windows pass on is first worked out in shared memory, those that hang
over an edge of the tile are worked out twice."""

_SHARED_BYTES = 48 * 1024
_PLACE_BYTES = 4

_OF_MEMORY_RATE, _OF_MEMORY_RATE_NARROW = {"forward": 0.7, "backward": 0.5}, 0.5
"""Of the memory rate [measured on an H200: windows of 2 x 2 and 3 x 3 over 64 x 64 x 112 x 112, fp32; forward in 16 bits]."""

_UNROLLED = (((2, 2), (2, 2)), ((3, 3), (2, 2)))
"""Windows and strides of those that the kernel unrolls, with all loads under way at once; PlanarWindow in pooling_tiles.cuh."""

_OF_MEMORY_RATE_INTERLEAVED, _OF_MEMORY_RATE_INTERLEAVED_ONE_BY_ONE = 0.59, 0.06
"""Forward where channels are innermost, of which a thread takes one: by windows that are unrolled [measured likewise: 2 x 2 with
indices, fp16; 3 x 3 in fp32 reach 0.79], and by others, whose loads wait for each other [averages of 7 x 7 over 2048 channels,
fp16]."""

_WINDOW_PLACE, _WINDOW_PLACE_ONE_BY_ONE, _WINDOW_PLACE_INTERLEAVED = 26, 65, 27
"""Multiply-adds in whose time a place of a window is looked at forward, of windows that are not unrolled, and where channels are
innermost [measured likewise, fp16; GoogLeNet's with stride 1 at batch 64; 3 x 3 with indices in both fp16 and fp32]."""

_GRADIENT, _GRADIENT_ONE_BY_ONE = 130, 430
"""The same of an element of dx gathered backward, also from windows that are not unrolled [measured likewise; GoogLeNet's with
stride 1 at batch 128, channels innermost]."""

_PLANE_VIEW = struct(("image", "<i8"), ("channel", "<i8"), ("row", "<i4"), ("column", "<i4"))
_TILE_SHAPE = struct(("strips", "<i4"), ("fastest", SMALL_DIVISOR), ("middle", SMALL_DIVISOR))
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("y", ADDRESS),
    ("dy", ADDRESS),
    ("output", ADDRESS),
    ("indices", ADDRESS),
    ("x_view", _PLANE_VIEW),
    ("dy_view", _PLANE_VIEW),
    ("output_view", _PLANE_VIEW),
    ("indices_view", _PLANE_VIEW),
    ("channels", "<i4"),
    ("x_extent", "<i4", 2),
    ("y_extent", "<i4", 2),
    ("window", "<i4", 2),
    ("stride", SMALL_DIVISOR, 2),
    ("before", "<i4", 2),
    ("counted_low", "<i4", 2),
    ("counted_high", "<i4", 2),
    ("tiles", "<i8"),
    ("channel_tiles", DIVISOR),
    ("row_tiles", DIVISOR),
    ("column_tiles", DIVISOR),
    ("tile", "<i4", 3),
    ("places", _TILE_SHAPE),
    ("window_tile", "<i4", 2),
    ("windows", _TILE_SHAPE),
    ("channels_last", "<i4"),
    ("propagates_nan", "<i4"),
)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """How the output is cut into tiles. Immutable."""

    channels_last: bool
    extents: tuple[int, int, int]  # channels, rows, columns of the output
    tile: tuple[int, int, int]
    windows: tuple[int, int]  # most windows over a tile, in rows and columns
    shared_bytes: int

    @classmethod
    def of(cls, problem: PoolingProblem) -> _Tiling:
        """The largest tile whose windows fit in shared memory; a single strip may not, and is given all the same."""
        elements = _SPREAD_ELEMENTS if isinstance(problem, PoolingBackwardProblem) else _ELEMENTS
        while (tiling := cls._with(problem, elements)).shared_bytes > _SHARED_BYTES and elements > _STRIP:
            elements //= 2
        return tiling

    @classmethod
    def _with(cls, problem: PoolingProblem, elements: int) -> _Tiling:
        output = problem.outputs[0]
        channels, (rows, columns) = output.shape[1], _planar(output.shape[2:], 1)
        strips = -(-rows // _STRIP)
        channels_last = output.strides[1] < min(output.strides[2:])
        if channels_last:
            c = _even(channels, min(32, elements // _STRIP))
            w = _even(columns, min(16, elements // (_STRIP * c)))
            h = _even(strips, elements // (_STRIP * c * w)) * _STRIP
        else:
            w = _even(columns, min(128, elements // _STRIP))
            h = _even(strips, elements // (_STRIP * w)) * _STRIP
            c = _even(channels, elements // (h * w))
        if not isinstance(problem, PoolingBackwardProblem):
            return cls(channels_last, (channels, rows, columns), (c, h, w), (0, 0), 0)
        pooling = problem.pooling
        p, q = (
            min((places + window - 2) // stride + 1, extent)
            for places, window, stride, extent in zip(
                (h, w),
                _planar(pooling.window, 1),
                _planar(pooling.stride, 1),
                _planar(problem.y.shape[2:], 1),
                strict=True,
            )
        )
        shared_bytes = c * p * q * (output.dtype.compute.itemsize + _PLACE_BYTES)
        return cls(channels_last, (channels, rows, columns), (c, h, w), (p, q), shared_bytes)

    def shape(self, rows: int, columns: int) -> tuple[int, tuple[int, int, int], tuple[int, int, int]]:
        """Fill in a _TILE_SHAPE of the tile's channels."""
        channels, strips = self.tile[0], -(-rows // _STRIP)
        fastest, middle = (channels, columns) if self.channels_last else (columns, strips)
        return channels * strips * columns, small_divisor(fastest), small_divisor(middle)


def _even(extent: int, most: int) -> int:
    """The largest part when an extent is cut into as few parts of at most `most` as possible, all about as large."""
    extent = max(extent, 1)
    return -(-extent // -(-extent // max(most, 1)))


def _planar(values: tuple[int, ...], fill: int) -> tuple[int, int]:
    """Values of two spatial dimensions; a single one comes last."""
    rows, columns = (fill, *values)[-2:]
    return rows, columns


def _pace(problem: PoolingProblem) -> tuple[int, float]:
    """Of a forward pass: multiply-adds in whose time it looks at a place of a window, and its share of the memory rate."""
    x, pooling = problem.inputs[0], problem.pooling
    unrolled = (pooling.window, pooling.stride) in _UNROLLED
    if x.strides[1] != 1 or min(x.shape[1], math.prod(x.shape[2:])) == 1:
        rate = _OF_MEMORY_RATE_NARROW if x.dtype.itemsize < 4 else _OF_MEMORY_RATE["forward"]
        return _WINDOW_PLACE if unrolled else _WINDOW_PLACE_ONE_BY_ONE, rate
    if unrolled:
        return _WINDOW_PLACE_INTERLEAVED, _OF_MEMORY_RATE_INTERLEAVED
    return _WINDOW_PLACE_INTERLEAVED, _OF_MEMORY_RATE_INTERLEAVED_ONE_BY_ONE


@dataclass(frozen=True, slots=True)
class PlanarPooling:
    """One direction of pooling. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "planar"

    def offer(self, problem: PoolingProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        if problem.pooling.spatial_ndim > 2:
            return f"{problem.pooling.spatial_ndim} spatial dimensions; up to 2 are supported"
        for tensor in (*problem.inputs, *problem.outputs):
            span = sum(
                (extent - 1) * stride for extent, stride in zip(tensor.shape[2:], tensor.strides[2:], strict=True)
            )
            if max(span, math.prod(tensor.shape[2:]), tensor.shape[1]) >= 1 << 31:
                return f"a plane of {tensor} needs more than 32 bits"
        tiling = _Tiling.of(problem)
        if tiling.shared_bytes > _SHARED_BYTES:
            return (
                f"the windows over a strip need {tiling.shared_bytes} B of shared memory; {_SHARED_BYTES} B are there"
            )
        is_forward = self.direction == "forward"
        unrolled = (problem.pooling.window, problem.pooling.stride) in _UNROLLED
        products = problem.outputs[0].size * (_GRADIENT if unrolled else _GRADIENT_ONE_BY_ONE)
        rate = _OF_MEMORY_RATE[self.direction]
        if is_forward:
            place, rate = _pace(problem)
            products = window_places(problem) * place
        seconds = max(
            operand_bytes(problem) / (figures.bytes_per_second * rate),
            products / figures.products_per_second(Maths.FP32),
        )
        return Offer(figures.launch_seconds + seconds, partial(self._prepare, problem, figures, tiling))

    def units(self) -> tuple[Unit, ...]:
        """One for each mode and dtype."""
        return tuple(unit for dtype in DTYPES[self.direction] for unit in self._units(dtype).values())

    def _prepare(self, problem: PoolingProblem, figures: DeviceFigures, tiling: _Tiling) -> Calls:
        output = problem.outputs[0]
        pooling, geometry = problem.pooling, Geometry.of(problem)
        channel_tiles, row_tiles, column_tiles = (
            -(-extent // part) for extent, part in zip(tiling.extents, tiling.tile, strict=True)
        )
        tiles = output.shape[0] * channel_tiles * row_tiles * column_tiles if output.size else 0
        params = record(
            _PARAMS,
            output_view=_view(output),
            channels=output.shape[1],
            x_extent=_planar(geometry.x, 1),
            y_extent=_planar(geometry.y, 1),
            window=_planar(pooling.window, 1),
            stride=[small_divisor(stride) for stride in _planar(pooling.stride, 1)],
            before=_planar(tuple(before for before, _ in pooling.padding), 0),
            counted_low=_planar(geometry.counted_low, 0),
            counted_high=_planar(geometry.counted_high, 1),
            tiles=tiles,
            channel_tiles=divisor(channel_tiles),
            row_tiles=divisor(row_tiles),
            column_tiles=divisor(column_tiles),
            tile=tiling.tile,
            places=tiling.shape(*tiling.tile[1:]),
            windows=tiling.shape(*tiling.windows),
            window_tile=tiling.windows,
            channels_last=tiling.channels_last,
            propagates_nan=pooling.propagate_nan,
        )
        operands = operands_of(problem)
        for name, tensor in operands.views.items():
            params[f"{name}_view"] = _view(tensor)
        unit = self._units(output.dtype)[mode_of(problem)]
        grid = blocks_for(figures, tiles, 1)
        return kernel_call(unit, grid, _THREADS, params, in_order(*operands.fields), shared_bytes=tiling.shared_bytes)

    def _units(self, dtype: DType) -> dict[str, Unit]:
        """By mode; those of a dtype share a source."""
        forward = "true" if self.direction == "forward" else "false"
        entries = {mode: f"pooling_{self.direction}_{self.name}_{mode}_{c_type(dtype)}" for mode in MODES}
        functions = {
            entry: f"pooling_planar<{c_type(dtype)}, PoolingMode::{MODES[mode]}, {forward}>"
            for mode, entry in entries.items()
        }
        units = generate_together("dnncore/pooling_planar.cuh", functions, "PlanarPoolingParams", _PARAMS, _THREADS)
        return {mode: units[entry] for mode, entry in entries.items()}


def _view(tensor: TensorDescriptor) -> np.ndarray:
    """Fill in a _PLANE_VIEW; a row that is not there has stride 0."""
    row, column = _planar(tensor.strides[2:], 0)
    return record(_PLANE_VIEW, image=tensor.strides[0], channel=tensor.strides[1], row=row, column=column)
