"""Depthwise convolution in tiles: square filters of few taps, not dilated, on rows or vectors of channels that are aligned; every
direction.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from dnncore.cuda.calls import Calls, Place, in_order, kernel_call
from dnncore.cuda.convolution.depthwise_plane import Plane, parts_for, vector_width, where
from dnncore.cuda.gemm import BLEND_AND_EPILOGUE
from dnncore.cuda.geometry import taps
from dnncore.cuda.params import ADDRESS, SMALL_DIVISOR, c_type, generate, record, small_divisor, struct
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem, Direction

__all__ = [
    "KERNELS",
    "REGISTER_BYTES",
    "TILE_ROWS",
    "Tiles",
    "filter_fields",
    "prepare_tiles",
    "step",
    "tile_units",
    "where_tiled",
]

_TILED = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_FILTERS, _STRIDES = (3, 5), (1, 2)
KERNELS = tuple(itertools.product(_TILED, _FILTERS, _STRIDES, (False, True)))
"""Element type, extent of the filter, stride, and whether channels are innermost, of each kernel there is forward and of the filter
gradient; the former are backward-data's of stride 1, too."""
_PIECES = (16, 8)
_PIECE = 16
"""Bytes that a tile covers of a row of the source or, where that is wider, of the output."""

_THREADS = 128
TILE_ROWS = 4
"""kTileRows in depthwise_tiles.cuh."""

_SPREAD_TILE = (2, 4)
"""Rows and columns of a tile of vectors of backward-data of stride 2, which writes four places for each that it reads."""

REGISTER_BYTES = 640
"""What a tile of vectors may take of a thread's registers, of which there are 1020 bytes at most."""

_LONGEST_WALK = 4
"""Tiles that a block takes one after another: its filters cost little then, and there are blocks enough to share out evenly."""

_MAX_COUNT = 2**31

# Fitted to 3x3 and 5x5 layers on an H200: what an output and a product cost, in products at the device's rate in float32; the rate
# of memory.
_PER_OUTPUT, _PER_PRODUCT, _OF_MEMORY_RATE = 12.0, 2.5, 0.82

_SOURCE_AND_OUTPUT = {Direction.FORWARD: (0, 2), Direction.BACKWARD_DATA: (1, 2), Direction.BACKWARD_FILTER: (0, 1)}
"""The operands that `Tiles.source` and `Tiles.output` are."""

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
    ("w_row", "<i4"),
    ("w_column", "<i4"),
    ("source_rows", "<i4"),
    ("source_columns", "<i4"),
    ("output_rows", "<i4"),
    ("output_columns", "<i4"),
    ("source_row", "<i4"),
    ("source_column", "<i4"),
    ("output_row", "<i4"),
    ("output_column", "<i4"),
    ("padding", "<i4"),
    ("piece", "<i4"),
    ("strips", SMALL_DIVISOR),
    ("row_tiles", SMALL_DIVISOR),
    ("channels", SMALL_DIVISOR),
    ("count", "<i4"),
    ("chunks", "<i4"),
    ("vectors", "<i4"),
    ("groups", "<i4"),
    ("walk", "<i4"),
    ("reads_filters_early", "<i4"),
)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a problem is cut into tiles. Immutable.

    Args:
        source: What is read at many places: x, or dy for backward-data.
        output: What is written: y, or dx for backward-data; dy, which is walked over, for the filter gradient.
        filter: Taps along either axis.
        stride: Along either axis.
        piece: Bytes that divide every row of the wider one; 0 where channels are innermost.
        vectors: Vectors of channels of a block; 0 where columns are innermost.
        spread: Whether the output is the wider one: backward-data of stride 2.
    """

    source: TensorDescriptor
    output: TensorDescriptor
    filter: int
    stride: int
    piece: int
    vectors: int
    spread: bool

    @classmethod
    def of(cls, problem: ConvolutionProblem, plane: Plane) -> Tiles | None:
        """None where there are no tiles for it."""
        x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
        if conv.spatial_ndim != 2 or x.dtype not in _TILED or w.shape[0] != x.shape[1] or not x.size or not y.size:
            return None
        size, stride = w.shape[2], conv.stride[0]
        regular = w.shape[2:] == (size, size) and conv.stride == (stride, stride) and conv.dilation == (1, 1)
        if not regular or size not in _FILTERS or stride not in _STRIDES or conv.padding[1][0] != size // 2:
            return None
        spread = problem.direction is Direction.BACKWARD_DATA and stride != 1
        if spread and conv.padding[0][0] != size // 2:
            return None
        source, output, vectors = plane.source, plane.output, plane.vectors
        piece = 0 if vectors else _piece(source, output, stride, spread=spread)
        tiles = cls(source, output, size, stride, piece, vectors, spread)
        return tiles if (vectors or tiles.piece) and tiles.count < _MAX_COUNT else None

    def seconds(self, figures: DeviceFigures) -> float:
        """Forward or backward-data: the launch, and arithmetic or memory, whichever takes longer."""
        narrow = min(self.source.size, self.output.size)
        work = self.output.size * _PER_OUTPUT + narrow * self.filter**2 * _PER_PRODUCT
        memory = (self.source.nbytes + self.output.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return figures.launch_seconds + max(work / figures.products_per_second(Maths.FP32), memory)

    @property
    def columns(self) -> int:
        """Of the output, in a tile."""
        if self.vectors:
            return self._tile_of_vectors[1]
        return _PIECE // self.source.dtype.itemsize // (1 if self.spread else self.stride)

    @property
    def strips(self) -> int:
        """Tiles of a row of tiles."""
        return -(-self.output.shape[3] // self.columns)

    @property
    def row_tiles(self) -> int:
        """Rows of tiles of an image."""
        rows = self._tile_of_vectors[0] if self.vectors else TILE_ROWS
        return -(-self.output.shape[2] // rows)

    @property
    def count(self) -> int:
        """Tiles of all channels, or of one where they are innermost."""
        images, channels = self.output.shape[:2]
        return images * self.strips * self.row_tiles * (1 if self.vectors else channels)

    @property
    def alignments(self) -> tuple[int, int]:
        """What the addresses of source and output are multiples of, in bytes."""
        if self.vectors:
            nbytes = vector_width(self.source.dtype) * self.source.dtype.itemsize
            return nbytes, nbytes
        narrow = self.piece // self.stride
        return (narrow, self.piece) if self.spread else (self.piece, narrow)

    @property
    def _tile_of_vectors(self) -> tuple[int, int]:
        return _tile_of_vectors(self.source.dtype, self.filter, self.stride, spread=self.spread)


def _piece(source: TensorDescriptor, output: TensorDescriptor, stride: int, *, spread: bool) -> int:
    """The largest piece that divides rows and strides of the wider one, and its part those of the other; 0 when there is none."""
    if source.strides[3] != 1 or output.strides[3] != 1:
        return 0
    for nbytes in _PIECES:
        wide = nbytes // source.dtype.itemsize
        narrow = wide // stride
        read, written = (narrow, wide) if spread else (wide, narrow)
        if all(
            tensor.shape[3] % width == 0
            and not any(
                tensor.strides[axis] % width or abs(tensor.strides[axis]) >= _MAX_COUNT
                for axis in range(3)
                if tensor.shape[axis] > 1
            )
            for tensor, width in ((source, read), (output, written))
        ):
            return nbytes
    return 0


def _tile_of_vectors(dtype: DType, size: int, stride: int, *, spread: bool) -> tuple[int, int]:
    """(rows, columns) of the output in a tile of vectors of channels: as many as the registers hold with what they are made of."""
    if spread:
        return _SPREAD_TILE
    width, rows = vector_width(dtype), TILE_ROWS
    columns = 4 if dtype.itemsize == 2 and stride == 1 else 2
    while rows > 1:
        read = (stride * (rows - 1) + size) * (stride * (columns - 1) + size) * dtype.itemsize
        if (read + rows * columns * dtype.compute.itemsize) * width <= REGISTER_BYTES:
            break
        rows //= 2
    return rows, columns


def _unit(dtype: DType, size: int, stride: int, *, vectors: bool, spread: bool = False) -> Unit:
    kind, tile = "planes", ""
    if vectors:
        rows, columns = _tile_of_vectors(dtype, size, stride, spread=spread)
        kind, tile = "channels", f", {vector_width(dtype)}, {rows}, {columns}"
    form, meeting = ("_spread", f"Spread<{size}>") if spread else ("", f"Strided<{size}, {stride}>")
    return generate(
        header="dnncore/convolution/depthwise_tiles.cuh",
        entry=f"convolution_depthwise_tiles{form}_{kind}_{size}x{size}_stride_{stride}_{c_type(dtype)}",
        function=f"depthwise::tiles_of_{kind}<{c_type(dtype)}, depthwise::{meeting}{tile}>",
        struct_name="depthwise::TileParams",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def tile_units() -> tuple[Unit, ...]:
    """Every unit that `prepare_tiles` can launch."""
    return tuple(
        _unit(dtype, size, stride, vectors=vectors, spread=spread)
        for dtype, size, stride, vectors in KERNELS
        for spread in ((False, True) if stride > 1 else (False,))
    )


def prepare_tiles(problem: ConvolutionProblem, tiles: Tiles, figures: DeviceFigures) -> Calls:
    """Fill in the parameters."""
    w, conv, source, output = problem.w, problem.convolution, tiles.source, tiles.output
    backward = problem.direction is Direction.BACKWARD_DATA
    padding = conv.padding[0][0]
    params = record(
        _PARAMS,
        source_image=source.strides[0],
        source_channel=source.strides[1],
        output_image=output.strides[0],
        output_channel=output.strides[1],
        **filter_fields(problem, turned=backward and not tiles.spread),
        source_rows=source.shape[2],
        source_columns=source.shape[3],
        output_rows=output.shape[2],
        output_columns=output.shape[3],
        source_row=step(source, 2),
        source_column=step(source, 3),
        output_row=step(output, 2),
        output_column=step(output, 3),
        padding=tiles.filter - 1 - padding if backward else padding,
        piece=tiles.piece,
        strips=small_divisor(tiles.strips),
        row_tiles=small_divisor(tiles.row_tiles),
        channels=small_divisor(output.shape[1]),
    )
    unit = _unit(source.dtype, tiles.filter, tiles.stride, vectors=tiles.vectors > 0, spread=tiles.spread)
    places = in_order("w", "source", "output") if backward else in_order("source", "w", "output")
    if not tiles.vectors:
        params["count"] = tiles.count
        blocks = -(-tiles.count // _THREADS)
        return kernel_call(unit, blocks, _THREADS, params, places, starts_early=figures.starts_early)
    width = tiles.vectors * vector_width(source.dtype)
    count, chunks = output.shape[0] * tiles.strips, -(-output.shape[1] // width)
    groups = -(-count // (_THREADS // tiles.vectors))
    walk = min(-(-tiles.row_tiles // parts_for(figures, tiles.row_tiles, chunks * groups)), _LONGEST_WALK)
    params["count"], params["chunks"], params["groups"] = count, chunks, groups
    params["vectors"], params["walk"] = tiles.vectors, walk
    blocks = chunks * groups * -(-tiles.row_tiles // walk)
    shared = math.prod(w.shape[2:]) * width * source.dtype.compute.itemsize
    return kernel_call(
        unit,
        blocks,
        _THREADS,
        params,
        places,
        shared_bytes=shared,
        starts_early=figures.starts_early,
        constants={"reads_filters_early": places["w"]},
    )


def step(tensor: TensorDescriptor, axis: int) -> int:
    """A stride; what is never stepped over may have any."""
    return tensor.strides[axis] if tensor.shape[axis] > 1 else 0


def filter_fields(problem: ConvolutionProblem, *, turned: bool) -> dict[str, int]:
    """Where the taps of a filter are, from the last to the first if it is turned round."""
    offset, (rows, columns) = taps(problem.w.shape[2:], problem.w.strides[2:], problem.convolution)
    if turned:
        last = problem.w.shape[2] - 1
        offset, rows, columns = offset + last * (rows + columns), -rows, -columns
    return {"w_filter": problem.w.strides[0], "w_offset": offset, "w_row": rows, "w_column": columns}


def where_tiled(tiles: Tiles, tiled: Calls, otherwise: Calls, direction: Direction) -> Calls:
    """The kernel of tiles where the addresses of source and output allow it, the other one elsewhere."""
    source, output = _SOURCE_AND_OUTPUT[direction]
    source_alignment, output_alignment = tiles.alignments
    return where(((Place(source), source_alignment), (Place(output), output_alignment)), tiled, otherwise)
