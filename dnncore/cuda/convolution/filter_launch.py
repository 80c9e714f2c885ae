"""Offers and calls of the backward-filter kernels of sm_90: the fastest tile and schedule by estimate, and its launches."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from operator import itemgetter

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, kernel_call
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
from dnncore.cuda.convolution.elsewhere import Otherwise, computing_elsewhere, where_aligned
from dnncore.cuda.convolution.filter_schedule import Schedule, Work, least_seconds
from dnncore.cuda.convolution.filter_tile import (
    GRADIENT,
    PARAMS,
    PATCH_COLUMNS,
    PATCH_ROWS,
    PATCH_TAPS,
    SUM_PARAMS,
    Kernels,
)
from dnncore.cuda.convolution.planes import planes_map, why_not_in_planes
from dnncore.cuda.convolution.sum_of_parts import SUM_THREADS, log2_ways
from dnncore.cuda.convolution.wgmma_tile import MOST
from dnncore.cuda.params import record
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, TensorMap
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem

__all__ = ["least_seconds", "searching_offer", "why_not_fed"]


def searching_offer(
    problem: ConvolutionProblem, figures: DeviceFigures, kernels: Kernels, elsewhere: CudaAlgorithm
) -> Generator[float, None, Offer | str]:
    """What the fastest schedule takes, or the reason why there is none.

    Yields:
        What it takes, before it is known what computes elsewhere.

    Args:
        problem: A backward-filter convolution of a kind, a dtype and an architecture that the kernels are for, and that they can
            be fed (`why_not_fed`).
        figures: Of the device.
        kernels: Of which one is chosen; planes are for all of them, or for none. Those that multiply store a dw of the operands'
            dtype; one in float32, of 16 bits, is the business of those that add up parts.
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
    """
    schedules = [schedule for tile in kernels.tiles for schedule in Schedule.of(problem, tile, figures)]
    fitting = [each for each in schedules if each.fits]
    if problem.w.dtype is not problem.x.dtype:
        fitting = [each for each in fitting if each.leaves_all]
        if not fitting:
            return f"dw is {problem.w.dtype.value}, x {problem.x.dtype.value}, and some block would have a whole tile"
    if not fitting:
        most = max((each.tiles for each in schedules), default=0)
        return f"{most} tiles; neither they nor their steps times the blocks fit into a grid and 32 bits"
    work = Work.of(problem, kernels, figures)
    seconds, schedule = min([(each.seconds(work, figures), each) for each in fitting], key=itemgetter(0))
    yield seconds
    return Offer(
        seconds,
        partial(_calls, problem, schedule, kernels, computing_elsewhere(elsewhere, problem, figures)),
        schedule.workspace_bytes,
        math="tf32" if kernels.rounds else "dtype",
    )


def why_not_fed(problem: ConvolutionProblem, *, in_planes: bool) -> str | None:
    """None where the copy engine can feed the kernels, else the reason."""
    x, w, dy = problem.x, problem.w, problem.y
    counts = (dy.size // dy.shape[1], x.size // x.shape[1], *w.shape[:2])
    if max(counts) > MOST:
        return f"{counts} pixels of dy and x, filters and channels; at most {MOST}"
    if in_planes:
        return why_not_in_planes(problem)
    return why_not_copied("x", x) or why_no_matrix("dy", dy) or why_not_gathered(x, forward_window(problem))


def _calls(problem: ConvolutionProblem, schedule: Schedule, kernels: Kernels, elsewhere: Otherwise) -> Calls:
    x, w, dy, conv, tile = problem.x, problem.w, problem.y, problem.convolution, schedule.tile
    window, slabs = forward_window(problem), -(-w.shape[1] // tile.slab)
    output = window.outputs
    maps: tuple[TensorMap, ...]
    if tile.in_patches:
        rows, columns = PATCH_ROWS, PATCH_COLUMNS
        output = output[0] // rows, output[1] // columns
        patch = rows + PATCH_TAPS[0] - 1, columns + PATCH_TAPS[1] - 1
        maps = patches_map(x, tile.slab, *patch), patches_map(dy, tile.slab, rows, columns)
    elif tile.in_planes:
        output = x.shape[0], schedule.steps // x.shape[0]
        maps = planes_map(x, tile.pixels, tile.slab), planes_map(dy, tile.pixels, tile.slab)
    else:
        maps = images_map(x, window, tile.slab, tile.pixels), matrix_map(dy, tile.slab, tile.pixels)
    of_x, of_dy = (each._replace(rounds=kernels.rounds) for each in maps)
    params = record(
        PARAMS,
        output=output,
        stride=window.steps,
        padding=[-first for first in window.first],
        dilation=[step if taps > 1 else 1 for step, taps in zip(conv.dilation, w.shape[2:], strict=True)],
        gathers=not tile.in_planes and not reads_matrix(x, window),
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
    params["gradient"] = record(GRADIENT, **values)
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
            SUM_PARAMS,
            gradient=params["gradient"],
            rows=tile.rows,
            fragments=tile.fragments,
            consumers=tile.consumers,
            log2_ways=log2_ways(schedule.parts),
        )
        blocks = tile.sums // 4 // (SUM_THREADS >> log2_ways(schedule.parts))
        grid = blocks, schedule.tiles, 1
        calls += kernel_call(kernels.sum_unit(w.dtype), grid, SUM_THREADS, sums, places, starts_early=True)
    aligned = tuple((place, ALIGNMENT_BYTES) for place in (x_place, dy_place, dw_place))
    return where_aligned(aligned, calls, elsewhere)
