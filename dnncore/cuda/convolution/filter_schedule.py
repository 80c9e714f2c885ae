"""How the backward-filter kernels of sm_90 share out their work: tiles of dw, and pieces of the line of their steps. Pure.

The picture is in `convolution/filter_feed.cuh`. What all of them have in common is here: parameters, schedules, estimates, calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, WhereAligned, kernel_call
from dnncore.cuda.convolution.copy_engine import (
    forward_window,
    images_map,
    matrix_map,
    patches_map,
    reads_matrix,
    why_no_matrix,
    why_not_copied,
    why_not_gathered,
)
from dnncore.cuda.convolution.sum_of_parts import SUM_THREADS, log2_ways
from dnncore.cuda.convolution.wgmma_tile import ARCHITECTURE, LONGEST_SUM, MOST, ROW_BYTES, WARPGROUP
from dnncore.cuda.params import ADDRESS, BLEND, generate, record, struct
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, TENSOR_MAP, TensorMap
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem

__all__ = ["Kernels", "Schedule", "Tile", "kernel_unit", "offer", "sum_unit"]

_PATCH_ROWS, _PATCH_COLUMNS = 14, 8
_PATCH_TAPS = (3, 3)
_PATCH_PIXELS = (_PATCH_ROWS + _PATCH_TAPS[0] - 1) * (_PATCH_COLUMNS + _PATCH_TAPS[1] - 1)
"""Of x, which the taps of a patch's pixels meet."""

_SUM_BYTES = 4
_MOST_WORK = 2**32
"""Of the steps of all tiles times the blocks, so that 32 bits hold it."""

_MOST_SHARED_TILES = 65535
"""Rows of a grid: one for each tile whose parts are added."""

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
"""Of a launch. What takes less, in one launch, is estimated without it: `implicit_gemm`, which takes longer there, is estimated as
no more than a launch in 16 bits, and as less in fp32. For layers of ResNet-50 at batch 1 it took 6.6 us in place of 4.5, and 5.6
in place of 4.0."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Filters and columns (channels of taps) of a block's tile, and stages of its ring: as many as fit. Immutable.

    Args:
        rows: Filters.
        columns: All taps of a slab of channels where stages are patches.
        stages: Of the ring.
        in_patches: Whether a stage is pixels of a patch and what all their taps meet.
        itemsize: Bytes of an element.
    """

    rows: int
    columns: int
    stages: int
    in_patches: bool = False
    itemsize: int = 2

    @property
    def slab(self) -> int:
        """Elements of a row of a stage."""
        return ROW_BYTES // self.itemsize

    @property
    def consumers(self) -> int:
        """Groups of four warps that multiply."""
        return _PATCH_TAPS[0] if self.in_patches else 2

    @property
    def threads(self) -> int:
        """Of a block, the producer's among them."""
        return (self.consumers + 1) * WARPGROUP

    @property
    def pixels(self) -> int:
        """Of dy in a stage: as many as a slab has elements, or a patch's."""
        return _PATCH_ROWS * _PATCH_COLUMNS if self.in_patches else self.slab

    @property
    def stage_bytes(self) -> int:
        """Of dy and x."""
        of_x = _PATCH_PIXELS if self.in_patches else self.columns // self.slab * self.pixels
        return (self.rows // self.slab * self.pixels + of_x) * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Stages, and two barriers for each."""
        return self.stages * (self.stage_bytes + 2 * 8)

    @property
    def sums(self) -> int:
        """In a slot of the workspace."""
        return self.rows * self.columns

    @property
    def fragments(self) -> int:
        """Four sums of a thread each."""
        return self.sums // (self.consumers * WARPGROUP * 4)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels that share out their work like this. Immutable.

    Args:
        tiles: There is a kernel for each.
        unit: That of a dtype and a tile.
        sum_unit: What adds up the parts of a dtype.
        maths: Which units multiply.
        of_rate: Which share of their rate is reached, products that give one of full precision counted as one.
        rounds: Whether the copy engine rounds float32 to tf32, which the caller permits.
    """

    tiles: Sequence[Tile]
    unit: Callable[[DType, Tile], Unit]
    sum_unit: Callable[[DType], Unit]
    maths: Maths
    of_rate: float = 1.0
    rounds: bool = False


_GRADIENT = struct(
    ("parts", ADDRESS),
    ("dw", ADDRESS),
    ("strides", "<i8", 4),
    ("filters", "<i4"),
    ("channels", "<i4"),
    ("taps", "<i4", 2),
    *(
        (name, "<i4")
        for name in ("slabs", "tile_step", "block_step", "steps", "tiles", "filter_tiles", "blocks", "in_vectors")
    ),
)
_PARAMS = struct(
    *((name, TENSOR_MAP) for name in ("x", "dy")),
    *BLEND,
    ("gradient", _GRADIENT),
    *((name, "<i4", 2) for name in ("output", "stride", "padding", "dilation")),
    ("gathers", "<i4"),
    alignment=64,
)
"""The struct `filter::Params`."""

_SUM_PARAMS = struct(
    *BLEND,
    ("gradient", _GRADIENT),
    *((name, "<i4") for name in ("rows", "fragments", "consumers", "log2_ways")),
)


def kernel_unit(header: str, kernel: str, entry: str, tile: Tile) -> Unit:
    """The kernel of a tile.

    Args:
        header: Of `convolution/`, where its class is.
        kernel: That class with its arguments, in namespace dnncore.
        entry: Name of its `extern "C"` entry.
        tile: Of each block.
    """
    source = (
        f'#include "dnncore/convolution/{header}.cuh"\n'
        "using namespace dnncore;\n"
        f"using Kernel = {kernel};\n"
        f'static_assert(sizeof(filter::Params) == {_PARAMS.itemsize}, "dnncore/cuda/convolution disagrees");\n'
        f'static_assert(sizeof(Kernel::Shared) == {tile.shared_bytes}, "dnncore/cuda/convolution disagrees");\n'
        f'extern "C" __global__ void __launch_bounds__({tile.threads}, 1) '
        f"{entry}(const __grid_constant__ filter::Params params) {{\n"
        "  Kernel::run(params);\n"
        "}\n"
    )
    return Unit(source, entry, (ARCHITECTURE,))


def sum_unit(header: str, function: str, entry: str) -> Unit:
    """The kernel that adds up parts by a function of `filter::SumParams`."""
    return generate(
        header=f"dnncore/convolution/{header}.cuh",
        entry=entry,
        function=function,
        struct_name="filter::SumParams",
        dtype=_SUM_PARAMS,
        threads=SUM_THREADS,
        architectures=(ARCHITECTURE,),
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the work is shared out. Immutable.

    Args:
        tile: Of each block.
        filter_tiles: Tiles along the filters.
        column_tiles: Tiles along taps and channels.
        steps: Stages of a tile: its pixels.
        blocks: That share out the steps of all tiles, as equally as can be.
    """

    tile: Tile
    filter_tiles: int
    column_tiles: int
    steps: int
    blocks: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, tile: Tile, figures: DeviceFigures) -> Iterator[Schedule]:
        """With as many blocks as take equal parts of tiles, and with all multiprocessors; several times where sums are too long."""
        k, c, r, s = problem.w.shape
        slabs, filter_tiles = -(-c // tile.slab), -(-k // tile.rows)
        if tile.in_patches:
            n, _, p, q = problem.y.shape
            if not _has_patches(problem):
                return
            column_tiles, steps = slabs, n * (p // _PATCH_ROWS) * (q // _PATCH_COLUMNS)
        else:
            column_tiles = -(-r * s * slabs // (tile.columns // tile.slab))
            steps = -(-problem.y.size // k // tile.pixels)
        tiles, longest = filter_tiles * column_tiles, LONGEST_SUM // tile.pixels
        waves = 1
        if min(steps, -(-tiles * steps // figures.multiprocessors)) > longest:
            waves = -(-tiles * steps // (longest * figures.multiprocessors))
        most = min(waves * figures.multiprocessors, tiles * steps)
        even = tiles * min(most // tiles, steps)
        for blocks in sorted({even, most} - {0}):
            found = cls(tile, filter_tiles, column_tiles, steps, blocks)
            if min(found.longest, steps) <= longest:
                yield found

    @property
    def tiles(self) -> int:
        """How many there are."""
        return self.filter_tiles * self.column_tiles

    @property
    def fits(self) -> bool:
        """Whether 32 bits hold the line times the blocks, and a grid the tiles that are shared."""
        return self.tiles * self.steps * (self.blocks + 1) < _MOST_WORK and (
            self.is_whole or self.tiles <= _MOST_SHARED_TILES
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
    def slots(self) -> int:
        """For the parts of tiles; none where blocks have whole tiles. `filter_feed.cuh` says which parts are where."""
        return 0 if self.is_whole else self.blocks - 1 + min(self.tiles, self.blocks)

    @property
    def workspace_bytes(self) -> int:
        """For the sums of all slots."""
        return self.slots * self.tile.sums * _SUM_BYTES

    @property
    def is_in_step(self) -> bool:
        """Whether blocks go through the same pixels at the same time, so that memory is read once for all of them."""
        return self.is_whole or self.blocks % self.tiles == 0

    def seconds(self, problem: ConvolutionProblem, figures: DeviceFigures, kernels: Kernels) -> float:
        """Of products and sums."""
        x, dy, dw = problem.x, problem.y, problem.w
        rate = figures.products_per_second(kernels.maths) * kernels.of_rate / figures.multiprocessors
        steps = self.longest * -(-self.blocks // figures.multiprocessors)
        multiplying = steps * self.tile.sums * self.tile.pixels / rate
        loading = steps * self._loaded_bytes(problem) / (_LOADED_BYTES * figures.clock_hz)
        met = dy.size // dy.shape[1] * math.prod(dw.shape[1:]) * x.dtype.itemsize
        memory = (min(x.nbytes, met) + dy.nbytes + dw.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        seconds = math.hypot(multiplying, loading, memory)
        if not self.is_in_step and x.nbytes + dy.nbytes > figures.l2_bytes * _OF_L2:
            seconds *= _OUT_OF_STEP
        if self.is_whole and seconds < _LITTLE * figures.launch_seconds:
            return seconds
        seconds += _LAUNCHES * figures.launch_seconds
        if self.is_whole:
            return seconds
        part_bytes = self.tile.sums * _SUM_BYTES
        parts = self.blocks if self.is_in_step else self.slots
        left = (1 if self.is_in_step else 2) * -(-self.blocks // figures.multiprocessors) * part_bytes / _LEFT_BYTES
        added = parts * part_bytes / (_ADDED_BYTES * figures.multiprocessors)
        return seconds + _SUM_LAUNCHES * figures.launch_seconds + (left + added) / figures.clock_hz

    def _loaded_bytes(self, problem: ConvolutionProblem) -> float:
        """Of a stage, on average; what does not exist is not loaded, and what is gathered counts for more.

        Where a tile has all columns, pixels of x are gathered as a whole, and those of dy are loaded once: with what memory takes.
        """
        k, c, r, s = problem.w.shape
        slabs, row_slabs = -(-c // self.tile.slab), -(-k // self.tile.slab)
        of_dy = row_slabs * self.column_tiles * self.tile.pixels
        if self.tile.in_patches:
            of_x: float = slabs * self.filter_tiles * _PATCH_PIXELS
        else:
            of_x = r * s * slabs * self.filter_tiles * self.tile.pixels
            has_all_columns = self.column_tiles == 1 and slabs > 1
            if has_all_columns:
                of_dy = 0
            elif not reads_matrix(problem.x, forward_window(problem)):
                of_x *= _GATHERED_SLAB if slabs == 1 else _GATHERED
        return (of_dy + of_x) / self.tiles * ROW_BYTES


def _has_patches(problem: ConvolutionProblem) -> bool:
    """Whether patches suit the convolution: their taps meet nothing that the convolution's would not."""
    conv, (p, q) = problem.convolution, problem.y.shape[2:]
    is_dense = conv.stride == conv.dilation == (1, 1) and problem.w.shape[2:] == _PATCH_TAPS
    return is_dense and p % _PATCH_ROWS == q % _PATCH_COLUMNS == 0


def offer(
    problem: ConvolutionProblem, figures: DeviceFigures, kernels: Kernels, elsewhere: CudaAlgorithm
) -> Offer | str:
    """What the fastest schedule takes, or the reason why none suits the problem.

    Args:
        problem: A backward-filter convolution of a kind, a dtype and an architecture that the kernels are for.
        figures: Of the device.
        kernels: Of which one is chosen.
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
    """
    reason = _why_not(problem)
    if reason is not None:
        return reason
    other = elsewhere.offer(problem, figures)
    if isinstance(other, str):
        return other
    schedules = [schedule for tile in kernels.tiles for schedule in Schedule.of(problem, tile, figures)]
    fitting = [each for each in schedules if each.fits]
    if not fitting:
        most = max((each.tiles for each in schedules), default=0)
        return f"{most} tiles; neither they nor their steps times the blocks fit into a grid and 32 bits"
    seconds, schedule = min(
        ((each.seconds(problem, figures, kernels), each) for each in fitting), key=lambda pair: pair[0]
    )
    return Offer(
        seconds,
        partial(_calls, problem, schedule, kernels, other),
        max(schedule.workspace_bytes, other.workspace_bytes),
        math="tf32" if kernels.rounds else "dtype",
    )


def _why_not(problem: ConvolutionProblem) -> str | None:
    """None where the copy engine can feed the kernels, else the reason."""
    x, w, dy = problem.x, problem.w, problem.y
    counts = (dy.size // dy.shape[1], x.size // x.shape[1], *w.shape[:2])
    if max(counts) > MOST:
        return f"{counts} pixels of dy and x, filters and channels; at most {MOST}"
    return why_not_copied("x", x) or why_no_matrix("dy", dy) or why_not_gathered(x, forward_window(problem))


def _calls(problem: ConvolutionProblem, schedule: Schedule, kernels: Kernels, elsewhere: Offer) -> Calls:
    x, w, dy, conv, tile = problem.x, problem.w, problem.y, problem.convolution, schedule.tile
    window, slabs = forward_window(problem), -(-w.shape[1] // tile.slab)
    output = window.outputs
    maps: tuple[TensorMap, ...] = images_map(x, window, tile.slab, tile.pixels), matrix_map(dy, tile.slab, tile.pixels)
    if tile.in_patches:
        rows, columns = _PATCH_ROWS, _PATCH_COLUMNS
        output = output[0] // rows, output[1] // columns
        patch = rows + _PATCH_TAPS[0] - 1, columns + _PATCH_TAPS[1] - 1
        maps = patches_map(x, tile.slab, *patch), patches_map(dy, tile.slab, rows, columns)
    of_x, of_dy = (replace(each, rounds=kernels.rounds) for each in maps)
    params = record(
        _PARAMS,
        output=output,
        stride=window.steps,
        padding=[-first for first in window.first],
        dilation=[step if taps > 1 else 1 for step, taps in zip(conv.dilation, w.shape[2:], strict=True)],
        gathers=not reads_matrix(x, window),
    )
    values = {
        "strides": w.strides,
        "filters": w.shape[0],
        "channels": w.shape[1],
        "taps": w.shape[2:],
        "slabs": slabs,
        "tile_step": 1 if tile.in_patches else tile.columns // tile.slab,
        "block_step": slabs if tile.in_patches else 1,
        "steps": schedule.steps,
        "tiles": schedule.tiles,
        "filter_tiles": schedule.filter_tiles,
        "blocks": schedule.blocks,
        "in_vectors": why_not_copied("dw", w) is None and w.shape[1] % (ALIGNMENT_BYTES // w.dtype.itemsize) == 0,
    }
    params["gradient"] = record(_GRADIENT, **values)
    x_place, dy_place, dw_place = Place(0), Place(1), Place(2)
    places: dict[FieldPath, Place] = {("gradient", "parts"): Place(WORKSPACE), ("gradient", "dw"): dw_place}
    if schedule.is_whole:
        del places["gradient", "parts"]
    calls = kernel_call(
        kernels.unit(x.dtype, tile),
        schedule.blocks,
        tile.threads,
        params,
        places,
        shared_bytes=tile.shared_bytes,
        maps={"x": (x_place, of_x), "dy": (dy_place, of_dy)},
        starts_early=True,
    )
    if not schedule.is_whole:
        sums = record(
            _SUM_PARAMS,
            gradient=params["gradient"],
            rows=tile.rows,
            fragments=tile.fragments,
            consumers=tile.consumers,
            log2_ways=log2_ways(schedule.parts),
        )
        blocks = tile.sums // 4 // (SUM_THREADS >> log2_ways(schedule.parts))
        grid = blocks, schedule.tiles, 1
        calls += kernel_call(kernels.sum_unit(x.dtype), grid, SUM_THREADS, sums, places, starts_early=True)
    aligned = tuple((place, ALIGNMENT_BYTES) for place in (x_place, dy_place, dw_place))
    return (WhereAligned(aligned, calls, elsewhere.prepare()),)
