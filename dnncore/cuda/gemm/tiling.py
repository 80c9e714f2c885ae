"""Which tile, which order of reading and how many parts: analytic, from the problem alone, so the same everywhere and every time.

The figures are for an H200. On another GPU what is chosen gives the same results, only perhaps not as fast as it could be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from dnncore.cuda.gemm.index_space import Digit, Product
from dnncore.cuda.params import c_type
from dnncore.dtypes import DType

__all__ = [
    "EXTENDED_TILES",
    "LONGEST_SUM",
    "PIPELINED_TILES",
    "TILES",
    "WIDE_TILES",
    "AnyTile",
    "MatrixTile",
    "Schedule",
    "Tile",
    "Walk",
    "choose_schedule",
    "choose_walks",
    "tile_counts",
]

_MULTIPROCESSORS = 132
_SECTOR_BYTES = 32
_LINE_BYTES = 128
_WARP = 32
_MIN_SPLIT_LENGTH = 128
LONGEST_SUM = 1 << 15
"""Longest sum in one accumulator where there is workspace to avoid it: its rounding error grows with the root of the length.

The parts of a longer one are less than twice as long, which every tile's `longest_sum` allows.
"""

_ANY_LENGTH = 2**31
_LONGEST_INT8_SUM = (2**31 - 1) // 128**2
"""What int32 holds always: 128 times 128 is the largest product."""

_LONGEST_TRUNCATED_SUM = 2**16
"""Tensor cores round sums of 16 bits in fp32 towards zero, every few products, and errors of products of one sign add up: to 4e-4
of the sum here, 0.8 of what rounding it to float16 may cost [measured on an H200, 6e-9 a product]."""

_SPLITS = sorted({*(2**i for i in range(11)), *(3 * 2**i for i in range(9))})

# Multiply-adds a second: two thirds of 128 (64) a cycle at 1.98 GHz, as measured for the largest tile in fp32 [fp64: estimated]; of
# 16 bits a third of what tensor cores do through mma.sync [estimated]; of int8, of which they do twice as many, no more [not
# measured]; the memory's rate; one more launch and its wait [both estimated].
_RATE_PER_MULTIPROCESSOR = {
    DType.FLOAT32: 168e9,
    DType.FLOAT64: 84e9,
    DType.FLOAT16: 500e9,
    DType.BFLOAT16: 500e9,
    DType.INT8: 500e9,
}
_BYTES_PER_SECOND = 4e12
_LAUNCH_SECONDS = 4e-6
_BUSY_WARPS = 16
"""Warps with which a multiprocessor hides its latencies, or all that a tile lets it have; with fewer it slows down, as their
square root."""


class Walk(Enum):
    """Which index neighbouring threads follow while they read an operand; `dnncore::gemm::Walk`."""

    OUTER = "kOuter"
    REDUCTION = "kReduction"


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile of C, `dnncore::gemm::Tile`. Immutable.

    Args:
        dtype: Element type.
        thread_rows: Threads along the rows.
        thread_columns: Threads along the columns.
        row_vectors: 16-byte vectors a thread holds along the rows.
        column_vectors: The same along the columns.
        depth: Length of a slab of the reduction, the unit of what is copied to shared memory.
        stages: Slabs in shared memory at a time, of which one is multiplied while the others are on their way; where B is
            read along the reduction there are always 3.
        min_blocks: Blocks that must fit on a multiprocessor, which bounds the registers.
        efficiency: Multiply-adds a cycle of a full multiprocessor, relative to the largest tile [measured on an H200: 3x3
            convolutions that fill the tiles].
    """

    dtype: DType
    thread_rows: int
    thread_columns: int
    row_vectors: int
    column_vectors: int
    depth: int
    stages: int
    min_blocks: int
    efficiency: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.thread_rows * self.thread_columns

    @property
    def rows(self) -> int:
        """Rows of C in a tile."""
        return self.thread_rows * self.row_vectors * (16 // self.dtype.itemsize)

    @property
    def columns(self) -> int:
        """Columns of C in a tile."""
        return self.thread_columns * self.column_vectors * (16 // self.dtype.itemsize)

    @property
    def longest_sum(self) -> int:
        """Most products in a sum."""
        return _ANY_LENGTH

    @property
    def cpp(self) -> str:
        """The C++ type."""
        sizes = (self.thread_rows, self.thread_columns, self.row_vectors, self.column_vectors, self.depth)
        return f"Tile<{c_type(self.dtype)}, {', '.join(map(str, sizes))}>"


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """A block's tile of C that the tensor cores compute, `dnncore::gemm::MatrixTile`. Immutable.

    Args:
        dtype: Element type of the operands: of 16 bits, whose sums are of the compute type, or int8, whose sums are int32.
        warp_rows: Blocks of 16 rows that a warp computes, of which two lie below each other.
        warp_columns: Blocks of 8 columns of each of two neighbouring warps.
        depth: See `Tile`.
        stages: See `Tile`.
        min_blocks: See `Tile`.
        efficiency: See `Tile` [estimated].
        pipelined: Whether it is one of `dnncore::gemm::Pipeline`, which reads 16 bytes at a time.
    """

    dtype: DType
    warp_rows: int
    warp_columns: int
    depth: int
    stages: int
    min_blocks: int
    efficiency: float
    pipelined: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block: four warps."""
        return 128

    @property
    def rows(self) -> int:
        """Rows of C in a tile."""
        return 2 * 16 * self.warp_rows

    @property
    def columns(self) -> int:
        """Columns of C in a tile."""
        return 2 * 8 * self.warp_columns

    @property
    def has_totals(self) -> bool:
        """Whether sums are carried over into totals, which are rounded to the nearest: `dnncore::gemm::MatrixTile::kHasTotals`."""
        return self.dtype is not DType.INT8 and not self.pipelined and self.rows * self.columns <= 2048

    @property
    def longest_sum(self) -> int:
        """Most products in a sum."""
        if self.dtype is DType.INT8:
            return _LONGEST_INT8_SUM
        return _ANY_LENGTH if self.has_totals else _LONGEST_TRUNCATED_SUM

    @property
    def cpp(self) -> str:
        """The C++ type."""
        return f"MatrixTile<{c_type(self.dtype)}, 2, 2, {self.warp_rows}, {self.warp_columns}, {self.depth}>"


AnyTile = Tile | MatrixTile


def tile_counts(tile: AnyTile, product: Product) -> list[int]:
    """Tiles of one part of the reduction, a phase at a time."""
    rows = math.ceil(product.rows / tile.rows) * product.groups
    return [rows * math.ceil(phase.num_columns / tile.columns) for phase in product.phases]


def _tiles(dtype: DType) -> tuple[Tile, ...]:
    return (
        Tile(dtype, 16, 16, 2, 4, depth=8, stages=3, min_blocks=1, efficiency=1.0),
        Tile(dtype, 8, 16, 2, 2, depth=8, stages=2, min_blocks=3, efficiency=0.88),
        Tile(dtype, 16, 16, 1, 1, depth=16, stages=2, min_blocks=3, efficiency=0.65),
        Tile(dtype, 8, 16, 1, 1, depth=16, stages=2, min_blocks=5, efficiency=0.56),
    )


_FEW_ROWS = Tile(DType.FLOAT32, 2, 32, 1, 2, depth=8, stages=2, min_blocks=4, efficiency=0.25)
"""8 x 256, for backward-data into an image's three channels."""


def _matrix_tiles(dtype: DType) -> tuple[MatrixTile, ...]:
    step = 32 // dtype.itemsize  # of the reduction, in one instruction
    return (
        MatrixTile(dtype, 2, 8, depth=step, stages=2, min_blocks=2, efficiency=1.0),
        MatrixTile(dtype, 1, 4, depth=2 * step, stages=2, min_blocks=4, efficiency=0.6),
    )


def _pipelined_tiles(dtype: DType) -> tuple[MatrixTile, ...]:
    """As many stages as 48 KiB hold; the efficiencies are guesses from the bytes that a multiplication reads [not measured]."""
    depth = 64 // dtype.itemsize
    return (
        MatrixTile(dtype, 4, 8, depth, stages=3, min_blocks=2, efficiency=2.5, pipelined=True),
        MatrixTile(dtype, 2, 8, depth, stages=4, min_blocks=3, efficiency=2.0, pipelined=True),
    )


TILES: dict[DType, tuple[AnyTile, ...]] = {
    DType.FLOAT32: (*_tiles(DType.FLOAT32), _FEW_ROWS),
    DType.FLOAT64: _tiles(DType.FLOAT64),
    DType.FLOAT16: _matrix_tiles(DType.FLOAT16),
    DType.BFLOAT16: _matrix_tiles(DType.BFLOAT16),
    DType.INT8: _matrix_tiles(DType.INT8),
}
"""Tiles of each element type: in fp32 128 x 256, 64 x 128, 64 x 64, 32 x 64 and 8 x 256, in fp64 half the first four each way; of
16 and 8 bits 64 x 128 and 32 x 64."""

EXTENDED_TILES: dict[DType, tuple[AnyTile, ...]] = {
    DType.FLOAT32: (replace(_tiles(DType.FLOAT32)[1], min_blocks=2), _tiles(DType.FLOAT32)[3]),
    DType.FLOAT64: _tiles(DType.FLOAT64)[1::2],
    DType.FLOAT16: TILES[DType.FLOAT16],
    DType.BFLOAT16: TILES[DType.BFLOAT16],
    DType.INT8: TILES[DType.INT8],
}
"""Tiles of the kernels that know epilogues and tables in the workspace: those whose sums fit into shared memory.

The larger one of fp32 would spill a few registers if three blocks had to fit on a multiprocessor.
"""

PIPELINED_TILES: dict[DType, tuple[AnyTile, ...]] = {
    dtype: _pipelined_tiles(dtype) for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.INT8)
}
"""Tiles of the kernels that read 16 bytes at a time, extended ones all of them: 128 x 128 and 64 x 128."""

WIDE_TILES: dict[DType, AnyTile] = {
    DType.FLOAT32: TILES[DType.FLOAT32][2],
    DType.FLOAT64: TILES[DType.FLOAT64][2],
    DType.FLOAT16: TILES[DType.FLOAT16][1],
    DType.BFLOAT16: TILES[DType.BFLOAT16][1],
    DType.INT8: TILES[DType.INT8][1],
}
"""The tile of the kernel that computes everything that the structs can hold."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A tile and in how many parts the reduction is added up. Immutable.

    Args:
        tile: The tile.
        splits: Number of parts.
        split_length: Length of each but the last: a multiple of the tile's depth.
        seconds: Estimated time.
    """

    tile: AnyTile
    splits: int
    split_length: int
    seconds: float


def _schedule(product: Product, tile: AnyTile, wanted_splits: int) -> Schedule:
    lengths = [phase.reduction_length for phase in product.phases]
    split_length = max(math.ceil(max(lengths) / wanted_splits / tile.depth), 1) * tile.depth
    splits = max(math.ceil(max(lengths) / split_length), 1)
    return Schedule(tile, splits, split_length, _seconds(product, tile, splits, split_length))


def _seconds(product: Product, tile: AnyTile, splits: int, split_length: int) -> float:
    counts = tile_counts(tile, product)
    summands = [min(phase.reduction_length, split_length) for phase in product.phases]
    blocks = max(sum(counts) * splits, 1)
    turns = math.ceil(blocks / _MULTIPROCESSORS)
    mean = sum(count * length for count, length in zip(counts, summands, strict=True)) * splits / blocks
    warps_a_block = tile.threads / 32
    busy = min(_BUSY_WARPS, tile.min_blocks * warps_a_block)
    occupancy = min(1.0, turns * warps_a_block / busy)
    rate = _RATE_PER_MULTIPROCESSOR[product.dtype] * tile.efficiency * math.sqrt(occupancy)
    seconds = max(turns * mean, *summands) * tile.rows * tile.columns / rate
    if splits > 1:  # the parts' sums are written and read
        sums = splits * product.groups * product.rows * product.num_columns
        seconds += 2 * sums * product.sum_dtype.itemsize / _BYTES_PER_SECOND + _LAUNCH_SECONDS
    return seconds


def choose_schedule(product: Product, tiles: tuple[AnyTile, ...], *, split: bool = False) -> Schedule:
    """Choose the fastest by estimate.

    Args:
        product: What is computed; one phase where it is to be split.
        tiles: The tiles to choose from.
        split: Whether the reduction may be cut into parts; where that is not worth it, the result has one part all the same.
    """
    longest = product.longest_sum
    fewest = longest // LONGEST_SUM
    splits = [n for n in _SPLITS if fewest <= n <= longest // _MIN_SPLIT_LENGTH] or [max(fewest, 1)]
    options = (_schedule(product, tile, n) for tile in tiles for n in (splits if split else [1]))
    return min(options, key=lambda schedule: schedule.seconds)


def _reading_cost(
    outer: tuple[Digit, ...], reduction: tuple[Digit, ...], stride: str, walk: Walk, itemsize: int
) -> int:
    """Rate one read of an operand by a warp: the sectors that it moves, and twice the cache lines that it looks up [estimate]."""
    depth = 8
    num_outer, num_reduction = (_WARP, 1) if walk is Walk.OUTER else (_WARP // depth, depth)
    rows = [_offset(outer, i, "b_stride") for i in range(num_outer)]
    steps = [_offset(reduction, k, stride) for k in range(num_reduction)]
    addresses = [(row + step) * itemsize for row in rows for step in steps]
    return len({a // _SECTOR_BYTES for a in addresses}) + 2 * len({a // _LINE_BYTES for a in addresses})


def _offset(digits: tuple[Digit, ...], number: int, stride: str) -> int:
    total = 0
    for digit in digits:
        number, value = divmod(number, digit.extent)
        total += value * int(getattr(digit, stride))
    return total


def choose_walks(product: Product) -> tuple[Walk, Walk]:
    """Choose for A and for B the walk whose reads are cheaper; along the rows or columns when both cost the same."""
    phase, itemsize = product.phases[0], product.dtype.itemsize
    rows = (Digit(product.rows, product.a_row_stride, 0),) if product.rows > 1 else ()

    def best(outer: tuple[Digit, ...], stride: str) -> Walk:
        walks = Walk.OUTER, Walk.REDUCTION
        return min(walks, key=lambda walk: _reading_cost(outer, phase.reduction, stride, walk, itemsize))

    return best(rows, "other_stride"), best(phase.column, "b_stride")
