"""The filter gradient of a depthwise convolution: sums in parts, in the workspace, and the sum of the parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dnncore.backend import Launch
from dnncore.cuda.convolution.depthwise_filter_tiles import FilterTiles, filter_tile_units, prepare_filter_tiles
from dnncore.cuda.convolution.depthwise_plane import AXIS, Plane, parts_for, vector_width, when_aligned
from dnncore.cuda.convolution.depthwise_tiles import Tiles, where_aligned
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, single, through_workspace
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
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem

__all__ = ["filter_units", "filter_workspace_bytes", "prepare_filter"]

_THREADS = 512
_SUM_THREADS = 32 * 16
"""32 outputs, kSumRows threads each."""

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
    """How the filter gradient is cut: a function of the problem alone. Immutable."""

    vectors: int
    chunks: int
    walkers: int
    runs: int
    jobs: int
    job_groups: int
    items: int
    part: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, plane: Plane) -> _Cut:
        along, across = plane.axes
        vectors = plane.vectors or 1
        width = vectors * (vector_width(problem.x.dtype) if plane.vectors else 1)
        classes = min(int(along["tap_step"]), int(along["filter"]))
        longest = -(-int(along["filter"]) // int(along["tap_step"]))
        runs = -(-longest // _TAPS)
        jobs = int(across["filter"]) * classes * runs
        job_groups = -(-jobs // _MAX_JOBS)
        chunks = -(-problem.w.shape[0] // width)
        items = problem.x.shape[0] * int(across["output"])
        walkers = _TEAM // vectors
        parts = min(parts_for(-(-items // walkers), chunks * job_groups), _MAX_PARTS)
        return cls(vectors, chunks, walkers, runs, jobs, job_groups, items, max(-(-items // parts), 1))

    @property
    def num_parts(self) -> int:
        """How many there are; 1 where there is nothing to add up."""
        return max(-(-self.items // self.part), 1)

    @property
    def jobs_a_block(self) -> int:
        """Rows of taps that a block takes."""
        return -(-self.jobs // self.job_groups)


def prepare_filter(problem: ConvolutionProblem, device: CudaDevice) -> Launch:
    """Fill in the parameters of both kernels."""
    plane, alone = Plane.of(problem), Plane.of(problem, may_have_vectors=False)
    launch = _prepare(problem, alone, device)
    tiles = Tiles.of(problem)
    if tiles:
        cut = FilterTiles.of(problem, tiles)
        to_parts = prepare_filter_tiles(problem, cut, device)
        rows_of_columns = replace(plane, axes=Plane.rows_of_columns(problem))
        from_parts = _prepare_sum(problem, rows_of_columns, cut.num_parts, device)
        return where_aligned(tiles, through_workspace(to_parts, from_parts), launch, problem.direction)
    return when_aligned(problem, _prepare(problem, plane, device), launch) if plane.vectors else launch


def _prepare(problem: ConvolutionProblem, plane: Plane, device: CudaDevice) -> Launch:
    w = problem.w
    along, across = plane.axes
    cut = _Cut.of(problem, plane)
    first = record(
        _PARAMS,
        alpha=1.0,
        x_image=problem.x.strides[0],
        x_channel=problem.x.strides[1],
        dy_image=problem.y.strides[0],
        dy_channel=problem.y.strides[1],
        along=along,
        across=across,
        across_places=divisor(int(across["output"])),
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
    to_parts = single(
        device.kernel(_unit(dtype, vectors=plane.vectors > 0)),
        (cut.chunks * cut.job_groups * cut.num_parts, 1, 1),
        (threads, 1, 1),
        first,
        ("x", "dy"),
        ("parts",),
        threads * _TAPS * width * dtype.compute.itemsize,
    )
    return through_workspace(to_parts, _prepare_sum(problem, plane, cut.num_parts, device))


def _prepare_sum(problem: ConvolutionProblem, plane: Plane, num_parts: int, device: CudaDevice) -> Launch:
    """The kernel that adds up parts whose taps are in the order of the plane's axes."""
    w = problem.w
    along, across = plane.axes
    params = record(
        _SUM,
        w_filter=w.strides[0],
        w_across=int(across["filter_stride"]),
        w_along=int(along["filter_stride"]),
        w_offset=plane.w_offset,
        across=int(across["filter"]),
        along=int(along["filter"]),
        outputs=w.size,
        num_parts=num_parts,
    )
    kernel = device.kernel(_sum_unit(problem.x.dtype))
    return single(kernel, (-(-w.size // 32), 1, 1), (_SUM_THREADS, 1, 1), params, ("parts",), ("dw",))


def filter_workspace_bytes(problem: ConvolutionProblem) -> int:
    """Bytes of the parts."""
    planes = (Plane.of(problem, may_have_vectors=vectors) for vectors in (False, True))
    parts = max(_Cut.of(problem, plane).num_parts for plane in planes)
    tiles = Tiles.of(problem)
    if tiles:
        parts = max(parts, FilterTiles.of(problem, tiles).num_parts)
    return parts * problem.w.size * problem.x.dtype.compute.itemsize


def filter_units() -> tuple[Unit, ...]:
    """Every unit that `prepare_filter` can ask for."""
    return (
        *(_unit(dtype, vectors=vectors) for dtype in FLOATING for vectors in (False, True)),
        *filter_tile_units(),
        *(_sum_unit(dtype) for dtype in FLOATING),
    )
