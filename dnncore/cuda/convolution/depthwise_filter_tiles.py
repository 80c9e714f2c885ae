"""The filter gradient of depthwise convolutions that come in tiles: its parts; `depthwise_filter` adds them up."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.cuda.calls import WORKSPACE, Calls, Place, kernel_call
from dnncore.cuda.convolution.depthwise_plane import parts_for
from dnncore.cuda.convolution.depthwise_tiles import KERNELS, REGISTER_BYTES, TILE_ROWS, Tiles, step
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate, record, small_divisor, struct
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem

__all__ = ["FilterTiles", "filter_tile_units", "prepare_filter_tiles"]

_THREADS = 128
_COLUMNS = 2
"""kColumns of add_channels_tile."""

_REGISTERS_OF_VECTORS = 160
"""Of a thread that takes vectors of channels, about: as many blocks as have room are made."""

# Fitted to 3x3 and 5x5 layers on an H200: what a product costs, in products at the device's rate in float32, of 32 bits and of 16,
# whose conversions come on top; the rate of memory.
_PER_PRODUCT, _PER_NARROW_PRODUCT, _OF_MEMORY_RATE = 3.5, 4.6, 0.82

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("dy", ADDRESS),
    ("parts", ADDRESS),
    ("x_image", "<i8"),
    ("x_channel", "<i8"),
    ("dy_image", "<i8"),
    ("dy_channel", "<i8"),
    ("x_rows", "<i4"),
    ("x_columns", "<i4"),
    ("dy_rows", "<i4"),
    ("dy_columns", "<i4"),
    ("x_row", "<i4"),
    ("x_column", "<i4"),
    ("dy_row", "<i4"),
    ("dy_column", "<i4"),
    ("padding", "<i4"),
    ("piece", "<i4"),
    ("strips", SMALL_DIVISOR),
    ("row_tiles", SMALL_DIVISOR),
    ("count", "<i4"),
    ("part", "<i4"),
    ("filters", "<i4"),
    ("chunks", "<i4"),
    ("vectors", "<i4"),
)


def _width(size: int) -> int:
    """Channels of a vector: the sums of all taps of them are in registers."""
    return 4 if size <= 3 else 2


def _rows(dtype: DType, size: int, stride: int) -> int:
    """Of dy, in a tile of vectors."""
    rows, width = TILE_ROWS, _width(size)
    sums = size * size * dtype.compute.itemsize
    while rows > 1:
        read = (stride * (rows - 1) + size) * (stride * (_COLUMNS - 1) + size) + rows * _COLUMNS
        if (sums + read * dtype.itemsize) * width <= REGISTER_BYTES:
            break
        rows //= 2
    return rows


@dataclass(frozen=True, slots=True)
class FilterTiles:
    """How the filter gradient is cut: a function of the problem and of the number of multiprocessors. Immutable.

    Args:
        tiles: What it is cut from.
        vectors: Vectors of channels of a block; 1 where columns are innermost.
        chunks: Blocks for the channels of one part.
        strips: Tiles of a row of tiles.
        row_tiles: Rows of tiles of an image.
        count: Tiles of all images, of one channel.
        part: Tiles of a part.
    """

    tiles: Tiles
    vectors: int
    chunks: int
    strips: int
    row_tiles: int
    count: int
    part: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, tiles: Tiles, figures: DeviceFigures) -> FilterTiles:
        """Cut it into as many parts as keep a GPU busy."""
        dtype, (images, channels, rows, columns) = problem.x.dtype, problem.y.shape
        if tiles.vectors:
            width = _width(tiles.filter)
            vectors = min(tiles.vectors * 4 // width, 32)
            chunks, walkers = -(-channels // (vectors * width)), _THREADS // vectors
            strips, row_tiles = -(-columns // _COLUMNS), -(-rows // _rows(dtype, tiles.filter, tiles.stride))
            resident = figures.multiprocessors * figures.resident_blocks(_THREADS, _REGISTERS_OF_VECTORS)
            parts = -(-resident // chunks)
        else:
            vectors, chunks, walkers = 1, channels, _THREADS
            strips, row_tiles = tiles.strips, tiles.row_tiles
            parts = parts_for(figures, images * strips * row_tiles, chunks)
        count = images * strips * row_tiles
        # A part of few tiles would leave walkers without any.
        part = max(-(-count // parts), min(walkers, count))
        return cls(tiles, vectors, chunks, strips, row_tiles, count, part)

    def seconds(self, figures: DeviceFigures) -> float:
        """Both launches, and arithmetic or memory, whichever takes longer."""
        x, dy = self.tiles.source, self.tiles.output
        each = _PER_NARROW_PRODUCT if x.dtype.itemsize == 2 else _PER_PRODUCT
        work = dy.size * self.tiles.filter**2 * each / figures.products_per_second(Maths.FP32)
        memory = (x.nbytes + dy.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return 2 * figures.launch_seconds + max(work, memory)

    @property
    def num_parts(self) -> int:
        """How many there are."""
        return -(-self.count // self.part)


def _unit(dtype: DType, size: int, stride: int, *, vectors: bool) -> Unit:
    kind, tile = ("channels", f", {_width(size)}, {_rows(dtype, size, stride)}") if vectors else ("planes", "")
    return generate(
        header="dnncore/convolution/depthwise_filter_tiles.cuh",
        entry=f"convolution_depthwise_filter_tiles_{kind}_{size}x{size}_stride_{stride}_{c_type(dtype)}",
        function=f"depthwise::filter_of_{kind}<{c_type(dtype)}, {size}, {stride}{tile}>",
        struct_name="depthwise::FilterTileParams",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def filter_tile_units() -> tuple[Unit, ...]:
    """Every unit that `prepare_filter_tiles` can launch."""
    return tuple(_unit(dtype, size, stride, vectors=vectors) for dtype, size, stride, vectors in KERNELS)


def prepare_filter_tiles(problem: ConvolutionProblem, cut: FilterTiles) -> Calls:
    """The kernel that computes the parts."""
    x, dy, tiles = problem.x, problem.y, cut.tiles
    params = record(
        _PARAMS,
        alpha=1.0,
        x_image=x.strides[0],
        x_channel=x.strides[1],
        dy_image=dy.strides[0],
        dy_channel=dy.strides[1],
        x_rows=x.shape[2],
        x_columns=x.shape[3],
        dy_rows=dy.shape[2],
        dy_columns=dy.shape[3],
        x_row=step(x, 2),
        x_column=step(x, 3),
        dy_row=step(dy, 2),
        dy_column=step(dy, 3),
        padding=problem.convolution.padding[0][0],
        piece=tiles.piece,
        strips=small_divisor(cut.strips),
        row_tiles=small_divisor(cut.row_tiles),
        count=cut.count,
        part=cut.part,
        filters=dy.shape[1],
        chunks=cut.chunks,
        vectors=cut.vectors,
    )
    unit = _unit(x.dtype, tiles.filter, tiles.stride, vectors=tiles.vectors > 0)
    shared = 0
    if tiles.vectors:
        shared = _THREADS * tiles.filter**2 * _width(tiles.filter) * x.dtype.compute.itemsize
    return kernel_call(
        unit,
        cut.chunks * cut.num_parts,
        _THREADS,
        params,
        {"x": Place(0), "dy": Place(1), "parts": Place(WORKSPACE)},
        blends=False,
        shared_bytes=shared,
    )
