"""In which tile, and in how many parts of its sums, a product takes least time: analytic, from its extents and a device's figures.

In how many parts a sum is cut depends on how many multiprocessors there are to fill, so models of GPUs may round it differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from dnncore.backend import TICKET_BYTES
from dnncore.cuda.gemm.index_space import Extents, Product
from dnncore.cuda.gemm.tiling import LONGEST_INT8_SUM, AnyTile
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = [
    "LONGEST_SUM",
    "Schedule",
    "choose_schedule",
    "choose_split",
    "least_seconds",
    "parts_seconds",
    "split_seconds",
    "whole_seconds",
]

_WARP = 32
_MIN_SPLIT_LENGTH = 128
"""Of a part of a sum, unless somebody asks for shorter ones."""

LONGEST_SUM = 1 << 15
"""Longest sum in one accumulator where there is workspace to avoid it: its rounding error grows with the root of the length.

The parts of a longer one are less than twice as long, which every tile's `longest_sum` allows.
"""

_SPLITS = sorted({*(2**i for i in range(11)), *(3 * 2**i for i in range(9))})

# Of the multiply-adds that the units could do: two thirds, as measured on an H200 for the largest tile in fp32 [fp64: estimated];
# of 16 bits an eighth [estimated]; of int8, of which there could be twice as many, no more [not measured].
_OF_PRODUCTS = {
    DType.FLOAT32: 0.6629,
    DType.FLOAT64: 0.6629,
    DType.FLOAT16: 0.1233,
    DType.BFLOAT16: 0.1233,
    DType.INT8: 0.06165,
}
_OF_MEMORY_RATE = 0.939
"""What writing and reading the parts' sums reaches [estimated]."""

_OF_BLOCKS_SHARE = 1.4
"""What a block reaches that reads the parts of its tile, of a multiprocessor's share of the memory's rate: 45 GB/s on an H200
[estimated]. They come from the level-2 cache."""

_ADDING = {DType.FLOAT32: (1.0, 0.0), DType.FLOAT64: (1.0, 0.0)}
_ADDING_OF_16_BITS = (1.85, 0.055)
"""What the kernel takes that adds the parts up, beside their way through memory, and what it takes more for each part, in the time
of a launch [measured on an H200: layers of ResNet-50 at batch 1; fp64, int8: estimated]."""

_JOINING = {DType.FLOAT32: 0.5}
_JOINING_OF_16_BITS = 0.85
"""What the last block of a tile takes to find that it is the last, likewise. In fp32 it is one launch, of which half is taken off
for the host, which has one launch less: up to 1.5 us more on the device for 4 us less there."""

_MOST_JOINED_TILES = TICKET_BYTES // 4 // 2
"""A ticket each; where operands are not aligned there are twice as many tiles at most."""

_BUSY_WARPS = 16
"""Warps with which a multiprocessor hides its latencies, or all that a tile lets it have; with fewer it slows down, as their
square root."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A tile and in how many parts the reduction is added up. Immutable.

    Args:
        tile: The tile.
        splits: Number of parts.
        split_length: Length of each but the last: a multiple of the tile's depth.
        seconds: Estimated time.
        joined: Whether the launch that computes the parts adds them up; else another one does.
    """

    tile: AnyTile
    splits: int
    split_length: int
    seconds: float
    joined: bool = False


def choose_schedule(product: Product, tiles: tuple[AnyTile, ...], figures: DeviceFigures) -> Schedule:
    """Choose the fastest by estimate of those that add up whole sums.

    Args:
        product: What is computed.
        tiles: The tiles to choose from, at least one.
        figures: Of the device.
    """
    fastest = _fastest_whole(product.extents, tiles, figures)
    assert fastest is not None, "there is no tile"
    return fastest


def choose_split(
    product: Product,
    tiles: tuple[AnyTile, ...],
    figures: DeviceFigures,
    than: float = math.inf,
    *,
    joined: bool | None = None,
    shortest: int = _MIN_SPLIT_LENGTH,
) -> Schedule | None:
    """Choose the fastest by estimate where sums may be cut into parts; one part, if it is not too long, is a choice too.

    Args:
        product: What is computed, of one phase.
        tiles: The tiles to choose from, at least one.
        figures: Of the device.
        than: Seconds that it must take less than.
        joined: Whether one launch must compute the parts and add them up, or must not; None for what is faster.
        shortest: Least summands of a part.

    Returns:
        None where none takes less.
    """
    return _fastest(product.extents, tiles, figures, than, split=True, joined=joined, shortest=shortest)


def least_seconds(extents: Extents, tiles: tuple[AnyTile, ...], figures: DeviceFigures) -> float:
    """Seconds that no schedule is below, in however many parts; infinitely many where there is no tile.

    Args:
        extents: Of what is computed.
        tiles: The tiles to choose from.
        figures: Of the device.
    """
    covers = _covers(extents, tiles, figures)
    return covers[0].least if covers else math.inf


def whole_seconds(extents: Extents, tiles: tuple[AnyTile, ...], figures: DeviceFigures) -> float:
    """Seconds of the fastest schedule that adds up whole sums; infinitely many where there is no tile.

    Args:
        extents: Of what is computed.
        tiles: The tiles to choose from, each of which holds the longest sum.
        figures: Of the device.
    """
    fastest = _fastest_whole(extents, tiles, figures)
    return math.inf if fastest is None else fastest.seconds


@lru_cache(maxsize=8)  # of a bound, of another algorithm's, and of the offer
def _fastest_whole(extents: Extents, tiles: tuple[AnyTile, ...], figures: DeviceFigures) -> Schedule | None:
    """That adds up whole sums; None where there is no tile."""
    return _fastest(extents, tiles, figures, math.inf, split=False)


def split_seconds(extents: Extents, tiles: tuple[AnyTile, ...], figures: DeviceFigures) -> float:
    """The same where sums are cut into two parts or more, of a product of one phase."""
    fastest = _fastest(extents, tiles, figures, math.inf, split=True, fewest=2)
    return math.inf if fastest is None else fastest.seconds


def parts_seconds(elements: int, dtype: DType, figures: DeviceFigures) -> float:
    """What a part of each of so many sums takes on its way through memory, there and back."""
    return 2 * elements * dtype.itemsize / (figures.bytes_per_second * _OF_MEMORY_RATE)


class _Cover(NamedTuple):
    """A product in tiles, whatever its sums are cut into. Immutable.

    Args:
        place: Of the tile among those to choose from.
        tile: The tile.
        num_tiles: Of one part of the reduction.
        work: Summands of all tiles.
        step: Seconds of a summand in a turn of blocks, with as many warps as hide the latencies.
        busy_turns: Turns of blocks at a time with which a multiprocessor hides its latencies.
        least: Seconds that multiprocessors take that never wait; a little less, for what rounding adds.
    """

    place: int
    tile: AnyTile
    num_tiles: int
    work: int
    step: float
    busy_turns: float
    least: float


_LEAST = attrgetter("least")


@lru_cache(maxsize=16)
def _covers(extents: Extents, tiles: tuple[AnyTile, ...], figures: DeviceFigures) -> tuple[_Cover, ...]:
    """The product in each of the tiles, that first which may take least."""
    multiprocessors = figures.multiprocessors
    dtype, all_rows, groups, phases = extents
    full_rate = figures.products_per_second(Maths.of(dtype)) * _OF_PRODUCTS[dtype]
    covers = []
    for place, tile in enumerate(tiles):
        tile_rows, tile_columns = tile.rows, tile.columns
        rows = -(-all_rows // tile_rows) * groups
        num_tiles = work = 0
        for columns, length in phases:
            count = rows * -(-columns // tile_columns)
            num_tiles += count
            work += count * length
        step = tile_rows * tile_columns * multiprocessors / (full_rate * tile.efficiency)
        warps = tile.threads / _WARP
        busy_turns, least = min(_BUSY_WARPS, tile.min_blocks * warps) / warps, work / multiprocessors * step
        covers.append(_Cover(place, tile, num_tiles, work, step, busy_turns, least * (1 - 1e-9)))
    covers.sort(key=_LEAST)
    return tuple(covers)


@lru_cache(maxsize=256)
def _cuts(longest: int, depth: int, shortest: int, *, split: bool) -> tuple[tuple[int, int], ...]:
    """Lengths of the parts of the longest sum, whole slabs of a depth, and how many parts there are, ascending."""
    fewest = longest // LONGEST_SUM
    wanted = [n for n in _SPLITS if fewest <= n <= longest // shortest] or [max(fewest, 1)] if split else [1]
    lengths = dict.fromkeys([(-(-longest // (n * depth)) or 1) * depth for n in wanted])
    return tuple([(length, -(-longest // length) or 1) for length in lengths])


def _can_be_joined(extents: Extents) -> bool:
    """Whether an accumulator holds the total always."""
    return extents.dtype is not DType.INT8 or extents.longest_sum <= LONGEST_INT8_SUM


def _fastest(
    extents: Extents,
    tiles: tuple[AnyTile, ...],
    figures: DeviceFigures,
    than: float,
    *,
    split: bool,
    joined: bool | None = None,
    shortest: int = _MIN_SPLIT_LENGTH,
    fewest: int = 1,
) -> Schedule | None:
    """The first of the fastest by estimate, of every tile in every number of parts; None where none takes less time than that.

    A time counts turns of blocks over the multiprocessors, each at the rate of its tile, and where sums are cut their way through
    memory, and another kernel or what the last block of a tile takes, whichever is less. What cannot be the fastest is passed over
    early: a plan waits for hundreds of estimates.
    """
    multiprocessors, longest, dtype = figures.multiprocessors, extents.longest_sum, extents.dtype
    part_seconds, element_seconds, to_join = 0.0, math.inf, 0.0
    to_add = to_add_part = math.inf
    if split:
        sums = extents.sum_dtype
        part_seconds = parts_seconds(extents.elements, sums, figures)
        if joined is not False and _can_be_joined(extents):
            block_rate = figures.bytes_per_second / multiprocessors * _OF_BLOCKS_SHARE
            element_seconds = sums.itemsize / block_rate
            to_join = _JOINING.get(dtype, _JOINING_OF_16_BITS) * figures.launch_seconds
        if not joined:
            adding = _ADDING.get(dtype, _ADDING_OF_16_BITS)
            to_add, to_add_part = (launches * figures.launch_seconds for launches in adding)
    best, best_place = None, -1
    for place, tile, num_tiles, work, step, busy_turns, least in _covers(extents, tiles, figures):
        if least > than:
            break
        can_join = tile.joins and num_tiles <= _MOST_JOINED_TILES
        join_seconds = tile.rows * tile.columns * element_seconds if can_join else math.inf
        added = one_launch = 0.0
        for split_length, parts in _cuts(longest, tile.depth, shortest, split=split):
            if parts < fewest:
                continue
            turns = -(-num_tiles * parts // multiprocessors) or 1
            if parts == 1:
                seconds, summands = 0.0, max(turns * (work / (num_tiles or 1)), longest)
            else:  # of one phase
                added, one_launch = to_add + parts * to_add_part, to_join + parts * join_seconds
                seconds = parts * part_seconds + min(added, one_launch)
                summands = turns * split_length
                if least + seconds > than:
                    break
            slowdown = math.sqrt(busy_turns / turns) if turns < busy_turns else 1.0
            seconds += summands * step * slowdown
            if (seconds, place) < (than, best_place):
                than, best_place = seconds, place
                best = (tile, parts, split_length, seconds, parts > 1 and one_launch <= added)
    return None if best is None else Schedule(*best)
