"""Backward-filter convolution of channels-last images of few channels by the matrix units of sm_90: implicit_gemm_wgmma_rows.

Rows of x are laid out in chunks (`image_rows`), the copy engine brings dy, and x where it can; the picture is in
`convolution/wgmma_rows_filter.cuh`. Operands have 16 bits, sums are in fp32, and their parts are added in order, so that the bits
are the same every time. Padding is zeros that are multiplied, dw may lie in memory in any way, and where what the engine copies
does not begin at a multiple of 16 bytes `implicit_gemm` computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, kernel_call
from dnncore.cuda.convolution.copy_engine import patches_map, why_not_copied
from dnncore.cuda.convolution.elsewhere import Otherwise, computing_elsewhere, where_aligned
from dnncore.cuda.convolution.image_rows import (
    IMAGE_ROWS,
    PLACE_BYTES,
    PLACE_OUTPUTS,
    chunk_values,
    image_rows,
    laying_out_clocks,
    row_values,
    runs_map,
    why_no_rows,
)
from dnncore.cuda.convolution.operands import narrowed
from dnncore.cuda.convolution.sum_of_parts import SUM_THREADS, log2_ways
from dnncore.cuda.convolution.wgmma_tile import (
    ARCHITECTURE,
    DTYPES,
    LONGEST_SUM,
    MOST,
    ROW_BYTES,
    SLAB,
    WARPGROUP,
    least_of_wgmma,
    multiplies,
    why_no_wgmma,
)
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate, record, small_divisor, struct
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, TENSOR_MAP, BoxMap, TensorMap
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["WgmmaRowsBackwardFilter"]

_CONSUMERS = _PRODUCERS = 2
_THREADS = (_CONSUMERS + _PRODUCERS) * WARPGROUP
_RUNS = 2
"""For each producer: one is laid out, the other lands."""

_GROUPS = 2
_COLUMNS = _GROUPS * PLACE_OUTPUTS
"""Of a rectangle of outputs, which are the summands of a product."""

_CHUNK = chunk_values(DTYPES[0])

_OUTPUTS_DOWN = (14, 7)
"""Rows of a rectangle; fewer where long strides leave no memory for stages."""

_LEAST_STAGES, _ENOUGH_STAGES, _MOST_STAGES = 2, 3, 6
_PLACE_SUM_BYTES = 16

# Of the estimate. A multiprocessor's clocks of a product: shared memory's, for 16 outputs of 64 filters and for those of a chunk;
# of a rectangle besides. The share of the memory's rate; what it takes, in launches, until all multiply, and until they add up
# parts; bytes of parts that a multiprocessor adds in a clock.
_DY_CLOCKS, _CHUNK_CLOCKS, _RECTANGLE_CLOCKS = 16, 2, 300
_OF_MEMORY_RATE = 0.85
_LAUNCHES, _SUM_LAUNCHES = 1.0, 0.37
_ADDED_BYTES = 12.4


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What filters a kernel is for: at most so many chunks of a row, and so many rows for each consumer. Immutable."""

    chunks: int
    rows: int

    @property
    def filter_rows(self) -> int:
        """Of all consumers."""
        return _CONSUMERS * self.rows

    @property
    def places(self) -> int:
        """Of four sums each, that a block leaves."""
        return self.filter_rows * self.chunks * WARPGROUP


KERNELS = (_Kernel(2, 2), _Kernel(3, 4), _Kernel(5, 6))
"""For 3x3, 7x7 and 11x11 filters of 3 channels, and what is smaller."""

_PARAMS = struct(
    *((name, TENSOR_MAP) for name in ("dy", "runs")),
    ("x", IMAGE_ROWS),
    ("parts", ADDRESS),
    *((name, SMALL_DIVISOR) for name in ("across", "down")),
    *(
        (name, "<i4")
        for name in ("rectangles", "filter_tiles", "blocks_of_filters", "stages", "outputs_down", "run_values")
    ),
    ("output", "<i4", 2),
    alignment=64,
)
_SUM_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("parts", "dw")),
    ("strides", "<i8", 4),
    *(
        (name, "<i4")
        for name in ("filters", "channels", "rows", "values", "chunks", "tile_places", "blocks", "log2_ways")
    ),
)


@cache
def _unit(dtype: DType, kernel: _Kernel) -> Unit:
    entry = f"convolution_wgmma_rows_backward_filter_{c_type(dtype)}_{kernel.filter_rows}x{kernel.chunks * _CHUNK}"
    return generate(
        header="dnncore/convolution/wgmma_rows_filter.cuh",
        entry=entry,
        function=f"wgmma_rows::Kernel<{c_type(dtype)}, {kernel.chunks}, {kernel.rows}>::run",
        struct_name="wgmma_rows::Params",
        dtype=_PARAMS,
        threads=_THREADS,
        architectures=(ARCHITECTURE,),
    )


@cache
def _sum_unit(dtype: DType) -> Unit:
    name = c_type(dtype)
    return generate(
        header="dnncore/convolution/wgmma_rows_filter.cuh",
        entry=f"convolution_wgmma_rows_backward_filter_parts_{name}",
        function=f"wgmma_rows::add_parts<{name}, {_CHUNK}>",
        struct_name="wgmma_rows::SumParams",
        dtype=_SUM_PARAMS,
        threads=SUM_THREADS,
        architectures=(ARCHITECTURE,),
    )


@dataclass(frozen=True)
class WgmmaRowsBackwardFilter(Bounded, Selective):
    """A backward-filter convolution of few channels, whose parts' sums are in the workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        elsewhere: What computes where dy, or x if the engine copies it, does not begin at a multiple of 16 bytes.
    """

    name: str
    elsewhere: CudaAlgorithm

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype and kind of filter, and one for each dtype of dw that adds up parts."""
        multiplying = (_unit(dtype, each) for dtype in DTYPES for each in KERNELS)
        return (*multiplying, *map(_sum_unit, (*DTYPES, DType.FLOAT32)))

    def suits(self, kind: ConvolutionKind) -> bool:
        """Backward-filter of images whose channels are innermost."""
        x, _, dy = kind.inside
        is_for = kind.direction is Direction.BACKWARD_FILTER and len(kind.taps) == 2
        return is_for and multiplies(kind, DTYPES) and x and dy

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What its products take at the full rate, or memory; and the launches. Infinite of rows that are too long for a kernel."""
        if row_values(problem) > KERNELS[-1].chunks * _CHUNK:
            return math.inf
        least = least_of_wgmma(narrowed(problem), figures)
        memory = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return max(least, memory) + (_LAUNCHES + _SUM_LAUNCHES) * figures.launch_seconds

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What it takes; or the reason why it does not suit the problem."""
        found = _schedule(problem, figures)
        if isinstance(found, str):
            return found
        elsewhere = computing_elsewhere(self.elsewhere, problem, figures)
        return Offer(found.seconds(figures), partial(_calls, problem, found, elsewhere), found.workspace_bytes)


@dataclass(frozen=True, slots=True)
class _Schedule:
    """How the outputs are shared out. Immutable.

    Args:
        problem: What is computed.
        kernel: By which.
        outputs_down: Rows of a rectangle of outputs.
        stages: Of the ring.
        blocks: That share out the rectangles, for each tile of 64 filters.
        runs: How the copy engine sees what a rectangle meets of x; None where threads load it.
    """

    problem: ConvolutionProblem
    kernel: _Kernel
    outputs_down: int
    stages: int
    blocks: int
    runs: BoxMap | None

    @property
    def filter_tiles(self) -> int:
        """Of 64 filters."""
        return -(-self.problem.w.shape[0] // SLAB)

    @property
    def rectangles(self) -> int:
        """Of all images."""
        return _rectangles(self.problem, self.outputs_down)

    @property
    def workspace_bytes(self) -> int:
        """What all blocks leave."""
        return self.filter_tiles * self.blocks * self.kernel.places * _PLACE_SUM_BYTES

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return self.stages * _stage_bytes(self.problem, self.kernel, self.outputs_down) + _runs_bytes(self.runs)

    def seconds(self, figures: DeviceFigures) -> float:
        """Of the busiest multiprocessor, or of the operands' bytes, and of the sums."""
        kernel, down = self.kernel, self.outputs_down
        chunks = _stage_rows(self.problem, kernel, down) * kernel.chunks * _COLUMNS
        products = down * kernel.filter_rows * (_DY_CLOCKS + kernel.chunks * _CHUNK_CLOCKS)
        clocks = max(products + _RECTANGLE_CLOCKS, laying_out_clocks(self.problem, self.problem.x, chunks))
        waves = math.ceil(self.filter_tiles * self.blocks / figures.multiprocessors)
        clocks *= math.ceil(self.rectangles / self.blocks) * waves
        memory = operand_bytes(self.problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        added = self.workspace_bytes / (_ADDED_BYTES * figures.multiprocessors)
        launches = (_LAUNCHES + _SUM_LAUNCHES) * figures.launch_seconds
        return max(clocks / figures.clock_hz, memory) + added / figures.clock_hz + launches


def _rectangles(problem: ConvolutionProblem, outputs_down: int) -> int:
    return problem.y.shape[0] * math.prod(_of_image(problem, outputs_down))


def _of_image(problem: ConvolutionProblem, outputs_down: int) -> tuple[int, int]:
    """Rectangles of an image, down and across."""
    p, q = problem.y.shape[2:]
    return -(-p // outputs_down), -(-q // _COLUMNS)


def _stage_rows(problem: ConvolutionProblem, kernel: _Kernel, outputs_down: int) -> int:
    """Of x, that the rows of a rectangle meet, with as many rows of a filter as the kernel has."""
    return (outputs_down - 1) * problem.convolution.stride[0] + kernel.filter_rows


def _stage_bytes(problem: ConvolutionProblem, kernel: _Kernel, outputs_down: int) -> int:
    """Of dy and x, and two barriers."""
    of_x = _stage_rows(problem, kernel, outputs_down) * _GROUPS * kernel.chunks * PLACE_BYTES
    return outputs_down * _COLUMNS * ROW_BYTES + of_x + 2 * 8


def _runs(problem: ConvolutionProblem, kernel: _Kernel, outputs_down: int) -> BoxMap | None:
    """How the copy engine sees what a rectangle meets of x: rows of values from whole 16 bytes on, and one beyond the last pair."""
    before = problem.convolution.padding[1][0] * problem.x.shape[1]
    reach = (
        -before % _CHUNK
        + (_COLUMNS - 1) * problem.convolution.stride[1] * problem.x.shape[1]
        + kernel.chunks * _CHUNK
        + 2
    )
    return runs_map(problem.x, -(-reach // _CHUNK) * _CHUNK, _stage_rows(problem, kernel, outputs_down))


def _runs_bytes(runs: BoxMap | None) -> int:
    """Of all runs, each of which begins at a multiple of 128 bytes, and a barrier for each."""
    run_bytes = math.prod(runs.box) * runs.dtype.itemsize if runs else 0
    return _PRODUCERS * _RUNS * (-(-run_bytes // 128) * 128 + 8)


def _schedule(problem: ConvolutionProblem, figures: DeviceFigures) -> _Schedule | str:
    """How the outputs are shared out; or the reason why the kernels do not suit the problem."""
    if problem.direction is not Direction.BACKWARD_FILTER:
        return f"it has no {problem.direction.value}"
    reason = why_no_wgmma(problem, figures.architecture, _unit(DTYPES[0], KERNELS[0]))
    reason = reason or why_no_rows(problem, problem.x) or why_not_copied("dy", problem.y)
    if reason is not None:
        return reason
    rows, values = problem.w.shape[2], row_values(problem)
    suiting = (each for each in KERNELS if rows <= each.filter_rows and values <= each.chunks * _CHUNK)
    kernel = next(suiting, None)
    if kernel is None:
        last = KERNELS[-1]
        return f"filters of {rows} rows of {values} values; at most {last.filter_rows} of {last.chunks * _CHUNK}"
    ways = [
        *((down, runs) for down in _OUTPUTS_DOWN if (runs := _runs(problem, kernel, down)) is not None),
        *((down, None) for down in _OUTPUTS_DOWN),
    ]
    memory = figures.shared_bytes
    stages = [(memory - _runs_bytes(runs)) // _stage_bytes(problem, kernel, down) for down, runs in ways]
    chosen = next((i for i, (_, runs) in enumerate(ways) if stages[i] >= _ENOUGH_STAGES - (runs is not None)), -1)
    if stages[chosen] < _LEAST_STAGES:
        needed = _LEAST_STAGES * _stage_bytes(problem, kernel, ways[chosen][0])
        return f"it takes {needed} B of shared memory; at most {memory}"
    down, runs = ways[chosen]
    most = _most_number(problem, down)
    if most > MOST:
        return f"rectangles, filters, or values of a row: {most}; at most {MOST}"
    tiles, rectangles = -(-problem.w.shape[0] // SLAB), _rectangles(problem, down)
    longest = LONGEST_SUM // (down * _COLUMNS)  # rectangles
    blocks = max(figures.multiprocessors // tiles, -(-rectangles // longest), 1)
    return _Schedule(problem, kernel, down, min(stages[chosen], _MOST_STAGES), min(blocks, rectangles), runs)


def _most_number(problem: ConvolutionProblem, outputs_down: int) -> int:
    """The largest that 32 bits must hold."""
    x, w, conv = problem.x, problem.w, problem.convolution
    rectangles = _rectangles(problem, outputs_down)
    columns = x.shape[3] + sum(conv.padding[1]) + w.shape[3] + 2 * _COLUMNS * conv.stride[1]
    rows = x.shape[2] + sum(conv.padding[0]) + w.shape[2] + 2 * outputs_down * conv.stride[0]
    return max(4 * rectangles, w.shape[0], columns * x.shape[1], rows)


def _calls(problem: ConvolutionProblem, schedule: _Schedule, elsewhere: Otherwise) -> Calls:
    kernel, w, dy, tiles = schedule.kernel, problem.w, problem.y, schedule.filter_tiles
    x_place, dy_place, dw_place = Place(0), Place(1), Place(2)
    maps: dict[FieldPath, tuple[Place, TensorMap]] = {
        "dy": (dy_place, patches_map(dy, SLAB, schedule.outputs_down, _COLUMNS))
    }
    if schedule.runs is not None:
        maps["runs"] = x_place, schedule.runs
    calls = kernel_call(
        _unit(problem.x.dtype, kernel),
        tiles * schedule.blocks,
        _THREADS,
        _params(problem, schedule),
        {("x", "images"): x_place, "parts": Place(WORKSPACE)},
        blends=False,
        shared_bytes=schedule.shared_bytes,
        maps=maps,
        starts_early=True,
    )
    sums = record(
        _SUM_PARAMS,
        strides=w.strides,
        filters=w.shape[0],
        channels=w.shape[1],
        rows=w.shape[2],
        values=row_values(problem),
        chunks=kernel.chunks,
        tile_places=kernel.places,
        blocks=schedule.blocks,
        log2_ways=log2_ways(schedule.blocks),
    )
    grid = kernel.places // (SUM_THREADS >> log2_ways(schedule.blocks)), tiles, 1
    places: dict[FieldPath, Place] = {"parts": Place(WORKSPACE), "dw": dw_place}
    calls += kernel_call(_sum_unit(w.dtype), grid, SUM_THREADS, sums, places, starts_early=True)
    aligned = tuple((place, ALIGNMENT_BYTES) for place, _ in maps.values())
    return where_aligned(aligned, calls, elsewhere)


def _params(problem: ConvolutionProblem, schedule: _Schedule) -> np.ndarray:
    """The parameter struct, all but addresses."""
    kernel, down = schedule.kernel, schedule.outputs_down
    of_image = _of_image(problem, down)
    params = record(
        _PARAMS,
        across=small_divisor(of_image[1]),
        down=small_divisor(of_image[0]),
        rectangles=schedule.rectangles,
        filter_tiles=schedule.filter_tiles,
        blocks_of_filters=schedule.blocks,
        stages=schedule.stages,
        outputs_down=down,
        run_values=schedule.runs.box[0] if schedule.runs else 0,
        output=problem.y.shape[2:],
    )
    params["x"] = image_rows(
        problem,
        problem.x,
        chunks=kernel.chunks,
        pitch=_GROUPS * kernel.chunks,
        stage_rows=_stage_rows(problem, kernel, down),
        rows_at_once=WARPGROUP // _COLUMNS // kernel.chunks,
    )
    return params
