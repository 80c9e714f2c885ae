"""The filter gradient of a depthwise convolution: sums in parts, in the workspace, and the sum of the parts."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.cuda.calls import WORKSPACE, Calls, Place, kernel_call
from dnncore.cuda.convolution.depthwise_filter_tiles import FilterTiles, filter_tile_units, prepare_filter_tiles
from dnncore.cuda.convolution.depthwise_plane import AXIS, Axis, Plane, parts_for, vector_width, when_aligned
from dnncore.cuda.convolution.depthwise_tiles import Tiles, where_tiled
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    SMALL_DIVISOR,
    c_type,
    divisor,
    generate,
    record,
    small_divisor,
    struct,
)
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem

__all__ = ["FilterCuts", "filter_sum_units", "filter_units", "prepare_filter", "prepare_filter_sum"]

_THREADS = 512
_SUM_OUTPUTS = 32
"""Sums that a block adds up."""

_SUM_THREADS = _SUM_OUTPUTS * 16
"""kSumRows threads for each."""

_TAPS = 4
"""kTaps in depthwise_filter.cuh."""

_MAX_JOBS = 8
_TEAM = 64
"""Threads that take one row of taps in a block."""

_MAX_PARTS = 256

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("dy", ADDRESS),
    ("parts", ADDRESS),
    ("x_image", "<i8"),
    ("x_channel", "<i8"),
    ("dy_image", "<i8"),
    ("dy_channel", "<i8"),
    ("along", AXIS),
    ("across", AXIS),
    ("across_places", DIVISOR),
    ("multiplier", SMALL_DIVISOR),
    ("items", "<i8"),
    ("part", "<i8"),
    ("filters", "<i4"),
    ("chunks", "<i4"),
    ("vectors", "<i4"),
    ("walkers", "<i4"),
    ("jobs", "<i4"),
    ("job_groups", "<i4"),
    ("runs", "<i4"),
)
_SUM = struct(
    *BLEND,
    ("parts", ADDRESS),
    ("dw", ADDRESS),
    ("w_filter", "<i8"),
    ("w_across", "<i8"),
    ("w_along", "<i8"),
    ("w_offset", "<i8"),
    ("across", "<i4"),
    ("along", "<i4"),
    ("outputs", "<i8"),
    ("num_parts", "<i8"),
)


def _unit(dtype: DType, *, vectors: bool) -> Unit:
    return generate(
        header="dnncore/convolution/depthwise_filter.cuh",
        entry=f"convolution_depthwise_filter_{'channels' if vectors else 'places'}_{c_type(dtype)}",
        function=f"depthwise::filter_parts<{c_type(dtype)}, {vector_width(dtype) if vectors else 1}>",
        struct_name="depthwise::FilterParams",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def _sum_unit(dtype: DType) -> Unit:
    return generate(
        header="dnncore/convolution/depthwise_filter.cuh",
        entry=f"convolution_depthwise_filter_sum_{c_type(dtype)}",
        function=f"depthwise::sum_parts<{c_type(dtype)}>",
        struct_name="depthwise::SumParams",
        dtype=_SUM,
        threads=_SUM_THREADS,
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """How the filter gradient is cut: a function of the problem and of the number of multiprocessors. Immutable."""

    plane: Plane
    vectors: int
    chunks: int
    walkers: int
    runs: int
    jobs: int
    job_groups: int
    items: int
    part: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, plane: Plane, figures: DeviceFigures) -> _Cut:
        along, across = plane.axes
        vectors = plane.vectors or 1
        width = vectors * (vector_width(problem.x.dtype) if plane.vectors else 1)
        classes, longest = min(along.tap_step, along.filter), -(-along.filter // along.tap_step)
        runs = -(-longest // _TAPS)
        jobs = across.filter * classes * runs
        job_groups = -(-jobs // _MAX_JOBS)
        chunks = -(-problem.w.shape[0] // width)
        items = problem.x.shape[0] * across.output
        walkers = _TEAM // vectors
        parts = min(parts_for(figures, -(-items // walkers), chunks * job_groups), _MAX_PARTS)
        return cls(plane, vectors, chunks, walkers, runs, jobs, job_groups, items, max(-(-items // parts), 1))

    @property
    def num_parts(self) -> int:
        """How many there are; 1 where there is nothing to add up."""
        return max(-(-self.items // self.part), 1)

    @property
    def jobs_a_block(self) -> int:
        """Rows of taps that a block takes."""
        return -(-self.jobs // self.job_groups)


@dataclass(frozen=True, slots=True)
class FilterCuts:
    """Each way in which a filter gradient may be cut, of which addresses choose one. Immutable.

    Args:
        alone: For any addresses.
        vectors: For aligned ones, where there are vectors of channels; else None.
        tiles: For aligned ones, in place of vectors, where there are tiles; else None.
    """

    alone: _Cut
    vectors: _Cut | None
    tiles: FilterTiles | None

    @classmethod
    def of(cls, problem: ConvolutionProblem, figures: DeviceFigures) -> FilterCuts:
        """Find the ways that there are."""
        plane = Plane.of(problem)
        tiles = Tiles.of(problem, plane)
        return cls(
            _Cut.of(problem, plane.alone(), figures),
            _Cut.of(problem, plane, figures) if plane.vectors and not tiles else None,
            FilterTiles.of(problem, tiles, figures) if tiles else None,
        )

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:
        """Bytes of the parts, of the way that has most."""
        parts = max(cut.num_parts for cut in (self.alone, self.vectors, self.tiles) if cut)
        return parts * problem.w.size * problem.x.dtype.compute.itemsize


def prepare_filter(problem: ConvolutionProblem, cuts: FilterCuts) -> Calls:
    """Both kernels of each way: parts, and their sums."""
    calls = _prepare(problem, cuts.alone)
    if cuts.tiles:
        plane = cuts.alone.plane
        to_parts = prepare_filter_tiles(problem, cuts.tiles)
        from_parts = prepare_filter_sum(problem, plane.w_offset, plane.rows_of_columns, cuts.tiles.num_parts)
        return where_tiled(cuts.tiles.tiles, to_parts + from_parts, calls, problem.direction)
    return when_aligned(problem, _prepare(problem, cuts.vectors), calls) if cuts.vectors else calls


def _prepare(problem: ConvolutionProblem, cut: _Cut) -> Calls:
    w, plane = problem.w, cut.plane
    along, across = plane.axes
    params = record(
        _PARAMS,
        alpha=1.0,
        x_image=problem.x.strides[0],
        x_channel=problem.x.strides[1],
        dy_image=problem.y.strides[0],
        dy_channel=problem.y.strides[1],
        along=along.values,
        across=across.values,
        across_places=divisor(across.output),
        multiplier=small_divisor(w.shape[0] // problem.convolution.groups),
        items=cut.items,
        part=cut.part,
        filters=w.shape[0],
        chunks=cut.chunks,
        vectors=cut.vectors,
        walkers=cut.walkers,
        jobs=cut.jobs,
        job_groups=cut.job_groups,
        runs=cut.runs,
    )
    dtype = problem.x.dtype
    threads = cut.jobs_a_block * _TEAM
    width = vector_width(dtype) if plane.vectors else 1
    to_parts = kernel_call(
        _unit(dtype, vectors=plane.vectors > 0),
        cut.chunks * cut.job_groups * cut.num_parts,
        threads,
        params,
        {"x": Place(0), "dy": Place(1), "parts": Place(WORKSPACE)},
        blends=False,
        shared_bytes=threads * _TAPS * width * dtype.compute.itemsize,
    )
    return to_parts + prepare_filter_sum(problem, plane.w_offset, plane.axes, cut.num_parts)


def prepare_filter_sum(problem: ConvolutionProblem, w_offset: int, axes: tuple[Axis, Axis], num_parts: int) -> Calls:
    """The kernel that adds up parts whose taps are in the order of the axes, (along, across)."""
    w, (along, across) = problem.w, axes
    params = record(
        _SUM,
        w_filter=w.strides[0],
        w_across=across.filter_stride,
        w_along=along.filter_stride,
        w_offset=w_offset,
        across=across.filter,
        along=along.filter,
        outputs=w.size,
        num_parts=num_parts,
    )
    return kernel_call(
        _sum_unit(problem.x.dtype),
        -(-w.size // _SUM_OUTPUTS),
        _SUM_THREADS,
        params,
        {"parts": Place(WORKSPACE), "dw": Place(2)},
    )


def filter_units() -> tuple[Unit, ...]:
    """Every unit that `prepare_filter` can launch."""
    return (
        *(_unit(dtype, vectors=vectors) for dtype in FLOATING for vectors in (False, True)),
        *filter_tile_units(),
        *filter_sum_units(),
    )


def filter_sum_units() -> tuple[Unit, ...]:
    """Every unit that `prepare_filter_sum` can launch."""
    return tuple(_sum_unit(dtype) for dtype in FLOATING)
