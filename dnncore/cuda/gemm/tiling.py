"""The tiles that there are kernels for, and in which order threads read a product's operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, lru_cache

from dnncore.cuda.gemm.index_space import Product
from dnncore.cuda.params import FULL_PRECISION, c_type
from dnncore.descriptors.settings import HashedOnce
from dnncore.dtypes import DType

__all__ = [
    "CLAMPED_TILES",
    "EXTENDED_TILES",
    "LONGEST_INT8_SUM",
    "PIPELINED_TILES",
    "TILES",
    "WIDE_TILES",
    "AnyTile",
    "MatrixTile",
    "Tile",
    "Walk",
    "choose_walks",
    "tile_counts",
]

_SECTOR_BYTES = 32
_LINE_BYTES = 128
_WARP = 32
_WALK_DEPTH = 8
"""Neighbouring threads that follow the reduction, before the next ones follow another row or column."""

_ANY_LENGTH = 2**31
LONGEST_INT8_SUM = (2**31 - 1) // 128**2
"""What int32 holds always: 128 times 128 is the largest product."""

_LONGEST_TRUNCATED_SUM = 2**16
"""Tensor cores round sums of 16 bits in fp32 towards zero, every few products, and errors of products of one sign add up: to 4e-4
of the sum here, 0.8 of what rounding it to float16 may cost [measured on an H200, 6e-9 per product]."""


class Walk(Enum):
    """Which index neighbouring threads follow while they read an operand; `dnncore::gemm::Walk`."""

    OUTER = "kOuter"
    REDUCTION = "kReduction"


@dataclass(frozen=True)
class Tile(HashedOnce):
    """A block's tile of C, `dnncore::gemm::Tile`. Immutable.

    Args:
        dtype: Element type.
        thread_rows: Threads along the rows.
        thread_columns: Threads along the columns.
        row_vectors: 16-byte vectors per thread along the rows.
        column_vectors: The same along the columns.
        depth: Length of a slab of the reduction, the unit of what is copied to shared memory.
        stages: Slabs in shared memory at a time, of which one is multiplied while the others are on their way; where B is
            read along the reduction there are always 3.
        min_blocks: Blocks that must fit on a multiprocessor, which bounds the registers.
        efficiency: Multiply-adds per cycle of a full multiprocessor, relative to the largest tile [measured on an H200: 3x3
            convolutions that fill the tiles].
        joins: Whether there are kernels whose last block of each tile adds up the parts of the reduction.
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
    joins: bool = False

    __hash__ = HashedOnce.__hash__

    @cached_property
    def threads(self) -> int:
        """Threads per block."""
        return self.thread_rows * self.thread_columns

    @cached_property
    def rows(self) -> int:
        """Rows of C in a tile."""
        return self.thread_rows * self.row_vectors * (16 // self.dtype.itemsize)

    @cached_property
    def columns(self) -> int:
        """Columns of C in a tile."""
        return self.thread_columns * self.column_vectors * (16 // self.dtype.itemsize)

    @cached_property
    def longest_sum(self) -> int:
        """Most products in a sum."""
        return _ANY_LENGTH

    @property
    def cpp(self) -> str:
        """The C++ type."""
        sizes = (self.thread_rows, self.thread_columns, self.row_vectors, self.column_vectors, self.depth)
        return f"Tile<{c_type(self.dtype)}, {', '.join(map(str, sizes))}>"


@dataclass(frozen=True)
class MatrixTile(HashedOnce):
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
        joins: See `Tile`.
    """

    dtype: DType
    warp_rows: int
    warp_columns: int
    depth: int
    stages: int
    min_blocks: int
    efficiency: float
    pipelined: bool = False
    joins: bool = False

    __hash__ = HashedOnce.__hash__

    @cached_property
    def threads(self) -> int:
        """Threads per block: four warps."""
        return 128

    @cached_property
    def rows(self) -> int:
        """Rows of C in a tile."""
        return 2 * 16 * self.warp_rows

    @cached_property
    def columns(self) -> int:
        """Columns of C in a tile."""
        return 2 * 8 * self.warp_columns

    @property
    def has_totals(self) -> bool:
        """Whether sums are carried over into totals, which are rounded to the nearest: `dnncore::gemm::MatrixTile::kHasTotals`."""
        return self.dtype is not DType.INT8 and not self.pipelined and self.rows * self.columns <= 2048

    @cached_property
    def longest_sum(self) -> int:
        """Most products in a sum."""
        if self.dtype is DType.INT8:
            return LONGEST_INT8_SUM
        return _ANY_LENGTH if self.has_totals else _LONGEST_TRUNCATED_SUM

    @property
    def cpp(self) -> str:
        """The C++ type."""
        return f"MatrixTile<{c_type(self.dtype)}, 2, 2, {self.warp_rows}, {self.warp_columns}, {self.depth}>"


AnyTile = Tile | MatrixTile


def tile_counts(tile: AnyTile, product: Product) -> list[int]:
    """Tiles of one part of the reduction, a phase at a time."""
    rows, columns = -(-product.rows // tile.rows) * product.groups, tile.columns
    return [rows * -(-phase.num_columns // columns) for phase in product.phases]


# Tiles that join are those for which estimates choose it, because every one has kernels of its own for that. Larger ones of fp32
# would gain less than 1 % by it, since their last blocks take about as long as the launch that they save; and in fp64, where small
# products would gain a tenth, that is not worth 18 kernels that everybody compiles.
def _tiles(dtype: DType) -> tuple[Tile, ...]:
    joins = dtype is DType.FLOAT32
    return (
        Tile(dtype, 16, 16, 2, 4, depth=8, stages=3, min_blocks=1, efficiency=1.0),
        Tile(dtype, 8, 16, 2, 2, depth=8, stages=2, min_blocks=3, efficiency=0.88),
        Tile(dtype, 16, 16, 1, 1, depth=16, stages=2, min_blocks=3, efficiency=0.65, joins=joins),
        Tile(dtype, 8, 16, 1, 1, depth=16, stages=2, min_blocks=5, efficiency=0.56, joins=joins),
    )


_FEW_ROWS = Tile(DType.FLOAT32, 2, 32, 1, 2, depth=8, stages=2, min_blocks=4, efficiency=0.25)
"""8 x 256, for backward-data into an image's three channels."""


def _matrix_tiles(dtype: DType) -> tuple[MatrixTile, ...]:
    """The efficiencies are those of first layers on an H200: of sums of 147; sums of 27 take twice as long, of 363 two thirds."""
    step = 32 // dtype.itemsize  # of the reduction, in one instruction
    return (
        MatrixTile(dtype, 2, 8, depth=step, stages=2, min_blocks=2, efficiency=0.25, joins=True),
        MatrixTile(dtype, 1, 4, depth=2 * step, stages=2, min_blocks=4, efficiency=0.15, joins=True),
    )


def _pipelined_tiles(dtype: DType) -> tuple[MatrixTile, ...]:
    """As many stages as 48 KiB hold; the efficiencies are guesses from the bytes that a multiplication reads [not measured]."""
    depth = 64 // dtype.itemsize
    return (
        MatrixTile(dtype, 4, 8, depth, stages=3, min_blocks=2, efficiency=2.5, pipelined=True),
        MatrixTile(dtype, 2, 8, depth, stages=4, min_blocks=3, efficiency=2.0, pipelined=True, joins=True),
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

CLAMPED_TILES: dict[DType, tuple[AnyTile, ...]] = {
    DType.FLOAT32: (*_tiles(DType.FLOAT32)[:2], _tiles(DType.FLOAT32)[3])
}
"""Tiles of the kernels that know the simplest epilogues. The smallest is for single images: of the 10 to 18 us that an extended
kernel takes for filters of one tap over 14 x 14 places, some 4 are its epilogue's [measured on an H200]."""

PIPELINED_TILES: dict[DType, tuple[AnyTile, ...]] = {
    dtype: _pipelined_tiles(dtype) for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.INT8)
}
"""Tiles of the kernels that read 16 bytes at a time, extended ones all of them: 128 x 128 and 64 x 128."""

WIDE_TILES: dict[DType, AnyTile] = {
    dtype: replace(tiles[2 if dtype in FULL_PRECISION else 1], joins=False) for dtype, tiles in TILES.items()
}
"""The tile of the kernel that computes everything that the structs can hold."""


def _offsets(digits: Sequence[tuple[int, int]], most: int) -> Sequence[int]:
    """Offsets of the first numbers that digits of so many values, a stride apart each, can count; at most so many."""
    offsets: Sequence[int] = (0,)
    for extent, stride in digits:
        count = len(offsets)
        if count >= most:
            break
        values = min(extent, -(-most // count))
        steps = range(0, values * stride, stride) if stride else (0,) * values
        offsets = steps if count == 1 else [step + offset for step in steps for offset in offsets]
    return offsets[:most]


def _reading_cost(offsets: Iterable[int], itemsize: int) -> int:
    """Rate one read of an operand by a warp: the sectors that it moves, and twice the cache lines that it looks up [estimate]."""
    in_sector, in_line = _SECTOR_BYTES // itemsize, _LINE_BYTES // _SECTOR_BYTES
    sectors = {offset // in_sector for offset in offsets}
    return len(sectors) + 2 * len({sector // in_line for sector in sectors})


def _cheaper_walk(outer: Sequence[tuple[int, int]], reduction: Sequence[tuple[int, int]], itemsize: int) -> Walk:
    """Of an operand whose rows, or columns, and whose reduction are counted by such digits, with such strides in it."""
    places, steps = _offsets(outer, _WARP), _offsets(reduction, _WALK_DEPTH)
    across = _reading_cost(places, itemsize)
    along = _reading_cost([place + step for place in places[: _WARP // _WALK_DEPTH] for step in steps], itemsize)
    return Walk.REDUCTION if along < across else Walk.OUTER


@lru_cache(maxsize=8)
def choose_walks(product: Product) -> tuple[Walk, Walk]:
    """Choose for A and for B the walk whose reads are cheaper; along the rows or columns when both cost the same."""
    phase, itemsize = product.phases[0], product.dtype.itemsize
    rows, columns = [(product.rows, product.a_row_stride)], [(digit.extent, digit.b_stride) for digit in phase.column]
    return (
        _cheaper_walk(rows, [(digit.extent, digit.other_stride) for digit in phase.reduction], itemsize),
        _cheaper_walk(columns, [(digit.extent, digit.b_stride) for digit in phase.reduction], itemsize),
    )
