"""How the backward-filter kernels of sm_90 share out their work: tiles of dw, and pieces of the line of their steps. Pure.

The picture is in `convolution/filter_feed.cuh`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from dnncore.cuda.convolution.copy_engine import forward_window, reads_matrix
from dnncore.cuda.convolution.filter_tile import PATCH_COLUMNS, PATCH_PIXELS, PATCH_ROWS, PATCH_TAPS, Kernels, Tile
from dnncore.cuda.convolution.wgmma_tile import LONGEST_SUM, ROW_BYTES
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem

__all__ = ["Schedule", "Work", "least_seconds"]

_SUM_BYTES = 4
_MOST_WORK = 2**32
"""Of the steps of all tiles times the blocks, so that 32 bits hold it."""

_MOST_SHARED_TILES = 65535
"""Rows of a grid: one for each tile whose parts are added."""

_OF_MULTIPROCESSORS = 0.9
"""That must be busy for blocks to take whole tiles alone: the others wait for all of the launch [not measured]."""

# Of the estimate, fitted to layers of ResNet-50 and VGG on an H200 (docs/worklog-convolution.md). Products, loads and memory are
# in each other's way, so that their times are added as the sides of a right angle. Bytes that a multiprocessor loads in a clock;
# how much longer those take that are gathered, and those of images of one slab of channels, whose taps meet the same bytes; what
# blocks lose in all that are out of step where this share of the second-level cache does not hold the operands. The share of the
# memory's rate. What it takes, in launches, until all multiprocessors multiply, and until they add up parts; bytes of parts that a
# multiprocessor leaves in a clock, and that it adds.
_LOADED_BYTES = 50.0
_GATHERED, _GATHERED_SLAB = 1.1, 3.0
_OUT_OF_STEP, _OF_L2 = 1.22, 0.25
_OF_MEMORY_RATE = 0.92
_LAUNCHES, _SUM_LAUNCHES = 1.0, 0.37
_LEFT_BYTES, _ADDED_BYTES = 55.0, 12.4
_LITTLE = 0.5
"""Of a launch. What takes less, in one launch of one tile per block, is estimated without it: `implicit_gemm`, which takes longer,
is estimated as no more than a launch in 16 bits, and as less in fp32. For layers of ResNet-50 at batch 1 it took 6.6 us in place of
4.5, and 5.6 in place of 4.0."""


def least_seconds(problem: ConvolutionProblem, rate: float, fewest_sums: int, figures: DeviceFigures) -> float:
    """Seconds that no schedule is below, wherever the operands lie: of products at such a rate, and of memory.

    Args:
        problem: A backward-filter convolution.
        rate: Products of the device in a second.
        fewest_sums: Of a tile.
        figures: Of the device.
    """
    x, dy, dw = (tensor.size * tensor.dtype.itemsize for tensor in (problem.x, problem.y, problem.w))
    pixels = problem.y.size // problem.y.shape[1] if dy else 0
    met = pixels * problem.y.dtype.itemsize * math.prod(problem.w.shape[1:])
    memory = (min(x, met) + dy + dw) / (figures.bytes_per_second * _OF_MEMORY_RATE)
    multiplying = problem.macs / rate * (1 - 1e-9)  # for what rounding adds
    of_a_tile = pixels * fewest_sums * figures.multiprocessors / rate  # by a block
    alone = math.hypot(max(multiplying, of_a_tile * (1 - 1e-9)), memory)
    if alone < _LITTLE * figures.launch_seconds:
        return alone
    return math.hypot(multiplying, memory) + _LAUNCHES * figures.launch_seconds


class Work(NamedTuple):
    """What every schedule of a problem takes its time from. Immutable.

    Args:
        problem: The problem.
        rate: Products of a multiprocessor in a second.
        memory_seconds: Of operands on their way through memory, once.
        overflows: Whether the operands are more than the second-level cache holds for blocks that are out of step.
        gathers: Whether pixels of x are not read in turn.
    """

    problem: ConvolutionProblem
    rate: float
    memory_seconds: float
    overflows: bool
    gathers: bool

    @classmethod
    def of(cls, problem: ConvolutionProblem, kernels: Kernels, figures: DeviceFigures) -> Work:
        """By kernels of a rate."""
        x, dy, dw = problem.x, problem.y, problem.w
        x_bytes, dy_bytes = x.nbytes, dy.nbytes
        met = dy.size // dy.shape[1] * math.prod(dw.shape[1:]) * x.dtype.itemsize
        return cls(
            problem,
            figures.products_per_second(kernels.maths) * kernels.of_rate / figures.multiprocessors,
            (min(x_bytes, met) + dy_bytes + dw.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE),
            x_bytes + dy_bytes > figures.l2_bytes * _OF_L2,
            not kernels.tiles[0].in_planes and not reads_matrix(x, forward_window(problem)),
        )


class Schedule(NamedTuple):
    """How the work is shared out. Immutable.

    Args:
        tile: Of each block.
        filter_tiles: Tiles along the filters.
        tiles: All, also along taps and channels.
        steps: Stages of a tile: its pixels.
        blocks: That share out the steps of all tiles, as equally as can be.
    """

    tile: Tile
    filter_tiles: int
    tiles: int
    steps: int
    blocks: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, tile: Tile, figures: DeviceFigures) -> Iterator[Schedule]:
        """With as many blocks as take equal parts of tiles, as many as take equally many whole ones, and with all multiprocessors.

        Several times all multiprocessors where sums are too long.
        """
        k, c, r, s = problem.w.shape
        slabs, filter_tiles = -(-c // tile.slab), -(-k // tile.rows)
        if tile.in_patches:
            n, _, p, q = problem.y.shape
            if not _has_patches(problem):
                return
            column_tiles, steps = slabs, n * (p // PATCH_ROWS) * (q // PATCH_COLUMNS)
        else:
            column_tiles = -(-r * s * slabs // (tile.columns // tile.slab))
            images = problem.y.shape[0] if tile.in_planes else 1
            steps = images * -(-problem.y.size // k // images // tile.pixels)
        tiles, longest = filter_tiles * column_tiles, LONGEST_SUM // tile.pixels
        waves = 1
        if min(steps, -(-tiles * steps // figures.multiprocessors)) > longest:
            waves = -(-tiles * steps // (longest * figures.multiprocessors))
        most = min(waves * figures.multiprocessors, tiles * steps)
        even = tiles * min(most // tiles, steps)
        whole, rest = divmod(tiles, -(-tiles // figures.multiprocessors))
        if rest or whole < _OF_MULTIPROCESSORS * figures.multiprocessors:
            whole = 0
        for blocks in sorted({even, whole, most} - {0}):
            if min(-(-tiles * steps // blocks), steps) <= longest:
                yield cls(tile, filter_tiles, tiles, steps, blocks)

    @property
    def column_tiles(self) -> int:
        """Along taps and channels."""
        return self.tiles // self.filter_tiles

    @property
    def fits(self) -> bool:
        """Whether 32 bits hold the line times the blocks, and a grid the tiles that are shared."""
        return self.tiles * self.steps * (self.blocks + 1) < _MOST_WORK and (
            self.tiles <= _MOST_SHARED_TILES or self.is_whole
        )

    @property
    def longest(self) -> int:
        """Steps of a block."""
        return -(-self.tiles * self.steps // self.blocks)

    @property
    def parts(self) -> int:
        """Most that a tile has."""
        if self.blocks % self.tiles == 0:
            return self.blocks // self.tiles
        return 1 if self.is_whole else min(-(-self.blocks // self.tiles) + 1, self.blocks, self.steps)

    @property
    def is_whole(self) -> bool:
        """Whether no tile is shared by blocks."""
        return self.tiles % self.blocks == 0

    @property
    def leaves_all(self) -> bool:
        """Whether every tile is shared, so that all sums are left for the kernel that adds up parts."""
        return self.longest < self.steps

    @property
    def slots(self) -> int:
        """For the parts of tiles; none where blocks have whole tiles. `filter_feed.cuh` says which parts are where."""
        return 0 if self.is_whole else self.blocks - 1 + min(self.tiles, self.blocks)

    @property
    def workspace_bytes(self) -> int:
        """For the sums of all slots."""
        return self.slots * self.tile.sums * _SUM_BYTES

    def seconds(self, work: Work, figures: DeviceFigures) -> float:
        """Of products and sums; memory is read once for all blocks where they go through the same pixels at the same time."""
        tiles, sums, waves = self.tiles, self.tile.sums, -(-self.blocks // figures.multiprocessors)
        is_whole = tiles % self.blocks == 0
        is_in_step = is_whole or self.blocks % tiles == 0
        steps = self.longest * waves
        multiplying = steps * sums * self.tile.pixels / work.rate
        loading = steps * self._loaded_bytes(work) / (_LOADED_BYTES * figures.clock_hz)
        seconds = math.hypot(multiplying, loading, work.memory_seconds)
        if not is_in_step and work.overflows:
            seconds *= _OUT_OF_STEP
        if tiles == self.blocks and seconds < _LITTLE * figures.launch_seconds:
            return seconds
        seconds += _LAUNCHES * figures.launch_seconds
        if is_whole:
            return seconds
        part_bytes = sums * _SUM_BYTES
        parts = self.blocks if is_in_step else self.slots
        left = (1 if is_in_step else 2) * waves * part_bytes / _LEFT_BYTES
        added = parts * part_bytes / (_ADDED_BYTES * figures.multiprocessors)
        return seconds + _SUM_LAUNCHES * figures.launch_seconds + (left + added) / figures.clock_hz

    def _loaded_bytes(self, work: Work) -> float:
        """Of a stage, on average; what does not exist is not loaded, and what is gathered counts for more.

        Where a tile has all columns, pixels of x are gathered as a whole, and those of dy are loaded once: with what memory takes.
        """
        (k, c, r, s), tile = work.problem.w.shape, self.tile
        slabs, row_slabs = -(-c // tile.slab), -(-k // tile.slab)
        of_dy = row_slabs * self.column_tiles * tile.pixels
        if self.tile.in_patches:
            of_x: float = slabs * self.filter_tiles * PATCH_PIXELS
        else:
            of_x = r * s * slabs * self.filter_tiles * self.tile.pixels
            has_all_columns = self.column_tiles == 1 and slabs > 1
            if has_all_columns:
                of_dy = 0
            elif work.gathers:
                of_x *= _GATHERED_SLAB if slabs == 1 else _GATHERED
        return (of_dy + of_x) / self.tiles * ROW_BYTES


def _has_patches(problem: ConvolutionProblem) -> bool:
    """Whether patches suit the convolution: their taps meet nothing that the convolution's would not."""
    conv, (p, q) = problem.convolution, problem.y.shape[2:]
    is_dense = conv.stride == conv.dilation == (1, 1) and problem.w.shape[2:] == PATCH_TAPS
    return is_dense and p % PATCH_ROWS == q % PATCH_COLUMNS == 0
