"""The filter gradient of a depthwise convolution of channels-last images with 5x5 and 7x7 filters of stride 1, band by band."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.calls import WORKSPACE, Calls, Place, WhereAligned, kernel_call
from dnncore.cuda.convolution.depthwise import DEPTHWISE
from dnncore.cuda.convolution.depthwise_filter import filter_sum_units, prepare_filter_sum
from dnncore.cuda.convolution.depthwise_plane import Plane
from dnncore.cuda.convolution.depthwise_segments import FORMS, least_seconds_of_taps
from dnncore.cuda.convolution.depthwise_tiles import step
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate, record, small_divisor, struct
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["DEPTHWISE_CHANNELS_BACKWARD_FILTER"]

_WIDTH = 4
"""kLaneWidth in depthwise_filter_channels.cuh."""

_PIECE = 16
"""Bytes of channels that are copied at once."""

_LEAST_PART = 3
"""Bands of a block: all but the first come while it computes."""

_MAX_THREADS = 256
_BLOCKS = 2
"""Blocks of a multiprocessor: one computes while the other waits for its first band."""

_RESERVED_BYTES = 1024
"""Of shared memory, per block."""

_SECTOR, _BANKS_BYTES, _WIDEST = 32, 128, 256
"""Bytes that memory is read by, that all banks of shared memory give at once, and of a block's channels at most."""

_MAX_EXTENT, _MAX_COUNT = 2**31, 2**30

# Fitted to layers of 5x5 and 7x7 filters on an H200: what an element of dy and a product cost, in products at the device's rate in
# float32. Assumed: what a row of x that two bands read costs beside it; the share of memory's rate.
_PER_ELEMENT, _PER_PRODUCT, _PER_HALO, _OF_MEMORY_RATE = 73.0, 1.1, 0.15, 0.7

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("dy", ADDRESS),
    ("parts", ADDRESS),
    ("x_image", "<i8"),
    ("x_row", "<i8"),
    ("dy_image", "<i8"),
    ("dy_row", "<i8"),
    ("x_column", "<i4"),
    ("dy_column", "<i4"),
    ("x_rows", "<i4"),
    ("dy_rows", "<i4"),
    ("padding_rows", "<i4"),
    ("padding_columns", "<i4"),
    ("x_columns", SMALL_DIVISOR),
    ("dy_columns", SMALL_DIVISOR),
    ("bands", SMALL_DIVISOR),
    ("count", "<i4"),
    ("part", "<i4"),
    ("high", "<i4"),
    ("pitch", "<i4"),
    ("dy_pitch", "<i4"),
    ("x_vectors", "<i4"),
    ("stage_vectors", "<i4"),
    ("filters", "<i4"),
    ("chunks", "<i4"),
    ("lanes", "<i4"),
    ("walkers", "<i4"),
)


@dataclass(frozen=True, slots=True)
class _Bands:
    """How a problem is cut into bands and parts. Immutable.

    Args:
        problem: What is cut.
        lanes: Vectors of channels of a block, which divide those that there are.
        high: Rows of dy in a band.
        multiprocessors: Of the device.
    """

    problem: ConvolutionProblem
    lanes: int
    high: int
    multiprocessors: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, figures: DeviceFigures) -> _Bands | None:
        """The cut that wastes least; None where no row fits."""
        room = figures.shared_bytes // _BLOCKS - _RESERVED_BYTES
        cuts = (cut for cut in cls._all(problem, figures) if cut.shared_bytes <= room)
        return min(cuts, key=lambda cut: (cut.waste, cut.shared_bytes), default=None)

    @classmethod
    def _all(cls, problem: ConvolutionProblem, figures: DeviceFigures) -> Iterator[_Bands]:
        x, size, rows = problem.x, problem.w.shape[2], problem.y.shape[2]
        vectors, whole = x.shape[1] // _WIDTH, max(_PIECE // x.dtype.itemsize // _WIDTH, 1)
        highs = sorted({-(-rows // bands) for bands in range(1, rows + 1)})
        widest = min(vectors, _MAX_THREADS // size, _WIDEST // (_WIDTH * x.dtype.itemsize))
        for lanes in range(whole, widest + 1, whole):
            if vectors % lanes == 0:
                yield from (cls(problem, lanes, high, figures.multiprocessors) for high in highs)

    @property
    def filter(self) -> int:
        """Taps along either axis."""
        return self.problem.w.shape[2]

    @property
    def walkers(self) -> int:
        """Threads that share a band's rows."""
        most = min(_MAX_THREADS // (self.lanes * self.filter), self.high)
        return -(-self.high // -(-self.high // most))

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.lanes * self.filter * self.walkers

    @property
    def chunks(self) -> int:
        """Of channels."""
        return self.problem.x.shape[1] // (_WIDTH * self.lanes)

    @property
    def bands(self) -> int:
        """Of an image."""
        return -(-self.problem.y.shape[2] // self.high)

    @property
    def count(self) -> int:
        """Bands of all images."""
        return self.problem.y.shape[0] * self.bands

    @property
    def part(self) -> int:
        """Bands of a block: as many as let all blocks run at once."""
        parts = max(self.multiprocessors * _BLOCKS // self.chunks, 1)
        return max(-(-self.count // min(parts, self.count)), min(_LEAST_PART, self.count))

    @property
    def num_parts(self) -> int:
        """How many there are."""
        return -(-self.count // self.part)

    @property
    def pitch(self) -> int:
        """Vectors from row to row of x; what lies right of a row is what lies left of the next."""
        (left, right) = self.problem.convolution.padding[1]
        return self._apart((self.problem.x.shape[3] + max(left, right)) * self.lanes)

    @property
    def dy_pitch(self) -> int:
        """Vectors from row to row of dy."""
        return self._apart(self.problem.y.shape[3] * self.lanes)

    def _apart(self, vectors: int) -> int:
        """So many that the banks of a row follow those of the one before, where threads read several rows together."""
        banks = _BANKS_BYTES // (_WIDTH * self.problem.x.dtype.itemsize)
        return vectors + (self.lanes - vectors) % banks

    @property
    def x_vectors(self) -> int:
        """Of a stage; behind its last row is no other row's padding."""
        return (self.high + self.filter - 1) * self.pitch + min(self.problem.convolution.padding[1]) * self.lanes

    @property
    def stage_vectors(self) -> int:
        """Of x and of dy."""
        return self.x_vectors + self.high * self.dy_pitch

    @property
    def shared_bytes(self) -> int:
        """Both stages, or the sums that come in their place."""
        x = self.problem.x
        sums = self.filter * _WIDTH * self.threads * x.dtype.compute.itemsize
        return max(2 * self.stage_vectors * _WIDTH * x.dtype.itemsize, sums)

    @property
    def waste(self) -> float:
        """How many times as long it takes for threads, rows, sectors and multiprocessors that have nothing to do."""
        nbytes = self.lanes * _WIDTH * self.problem.x.dtype.itemsize
        turns = -(-self.high // self.walkers) * self.walkers * self.bands / self.problem.y.shape[2]
        idle = self.multiprocessors * _BLOCKS * self.part / (self.count * self.chunks)
        return (
            turns
            * max(idle, 1.0)
            * (-(-self.threads // 32) * 32 / self.threads)
            * max(1.0, _MAX_THREADS / 2 / self.threads)
            * (-(-nbytes // _SECTOR) * _SECTOR / nbytes)
            * (1 + _PER_HALO * (self.filter - 1) / self.high)
        )

    def seconds(self, figures: DeviceFigures) -> float:
        """Both launches, and arithmetic or memory, whichever takes longer."""
        problem = self.problem
        each = _PER_ELEMENT + self.filter**2 * _PER_PRODUCT
        work = problem.y.size * each / figures.products_per_second(Maths.FP32)
        memory = (problem.x.nbytes + problem.y.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return 2 * figures.launch_seconds + max(work, memory) * self.waste


def _is_in_pieces(tensor: TensorDescriptor) -> bool:
    """Whether its channels are innermost and pieces of them start at multiples of their size."""
    width = _PIECE // tensor.dtype.itemsize
    others = [tensor.strides[axis] for axis in (0, 2, 3) if tensor.shape[axis] > 1]
    return tensor.strides[1] == 1 and not any(stride % width or abs(stride) >= _MAX_EXTENT for stride in others)


def _why_not(problem: ConvolutionProblem) -> str | None:
    """None where the kernels can solve it, given room, else the reason why not."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    if problem.direction is not Direction.BACKWARD_FILTER:
        return f"it is for filter gradients, not {problem.direction.value}"
    if conv.spatial_ndim != 2 or w.shape[1] != 1 or w.shape[0] != x.shape[1]:
        return f"w is {w.shape}; one filter for each channel and two spatial dimensions are needed"
    if (x.dtype, w.shape[2]) not in FORMS or w.shape[2] != w.shape[3]:
        return f"filters are {w.shape[2]} x {w.shape[3]} in {x.dtype.value}; it has kernels of 5 x 5 and 7 x 7, not in float64"
    if conv.stride != (1, 1) or conv.dilation != (1, 1):
        return f"stride {conv.stride}, dilation {conv.dilation}; both must be 1"
    if not x.size or not y.size:
        return "there is nothing to add up"
    if x.shape[1] % (_PIECE // x.dtype.itemsize) or not _is_in_pieces(x) or not _is_in_pieces(y):
        return f"channels of x and dy do not come in pieces of {_PIECE} B"
    if y.shape[0] * y.shape[2] >= _MAX_COUNT:
        return f"{y.shape[0]} images of {y.shape[2]} rows; their number has 30 bits"
    return None


@dataclass(frozen=True, slots=True)
class DepthwiseChannelsBackwardFilter(Bounded, Selective):
    """A row of taps per thread, bands of rows in shared memory. Immutable."""

    name: str = "depthwise_channels"

    def suits(self, kind: ConvolutionKind) -> bool:
        """Filter gradients, where each filter sees one channel."""
        return kind.sees_one_channel and kind.direction is Direction.BACKWARD_FILTER

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What the taps take at least."""
        return least_seconds_of_taps(problem, figures)

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """For aligned addresses by its own kernel, for others by `DEPTHWISE`'s; parts are in the workspace."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        bands = _Bands.of(problem, figures)
        otherwise = DEPTHWISE.offer(problem, figures)
        if bands is None or isinstance(otherwise, str):
            return (
                f"{figures.shared_bytes} B of shared memory have no room for a row" if bands is None else str(otherwise)
            )
        parts = bands.num_parts * problem.w.size * problem.x.dtype.compute.itemsize
        prepare = partial(_prepare, problem, bands, otherwise)
        return Offer(bands.seconds(figures), prepare, max(parts, otherwise.workspace_bytes))

    def units(self) -> tuple[Unit, ...]:
        """Every unit that it can launch."""
        return (*itertools.starmap(_unit, FORMS), *filter_sum_units(), *DEPTHWISE.units())


def _prepare(problem: ConvolutionProblem, bands: _Bands, otherwise: Offer) -> Calls:
    x, dy, (rows, columns) = problem.x, problem.y, problem.convolution.padding
    params = record(
        _PARAMS,
        alpha=1.0,
        x_image=step(x, 0),
        x_row=step(x, 2),
        dy_image=step(dy, 0),
        dy_row=step(dy, 2),
        x_column=step(x, 3),
        dy_column=step(dy, 3),
        x_rows=x.shape[2],
        dy_rows=dy.shape[2],
        padding_rows=rows[0],
        padding_columns=columns[0],
        x_columns=small_divisor(x.shape[3]),
        dy_columns=small_divisor(dy.shape[3]),
        bands=small_divisor(bands.bands),
        count=bands.count,
        part=bands.part,
        high=bands.high,
        pitch=bands.pitch,
        dy_pitch=bands.dy_pitch,
        x_vectors=bands.x_vectors,
        stage_vectors=bands.stage_vectors,
        filters=dy.shape[1],
        chunks=bands.chunks,
        lanes=bands.lanes,
        walkers=bands.walkers,
    )
    to_parts = kernel_call(
        _unit(x.dtype, bands.filter),
        bands.chunks * bands.num_parts,
        bands.threads,
        params,
        {"x": Place(0), "dy": Place(1), "parts": Place(WORKSPACE)},
        blends=False,
        shared_bytes=bands.shared_bytes,
    )
    plane = Plane.of(problem)
    calls = to_parts + prepare_filter_sum(problem, plane.w_offset, plane.rows_of_columns, bands.num_parts)
    return (WhereAligned(((Place(0), _PIECE), (Place(1), _PIECE)), calls, otherwise.prepare),)


def _unit(dtype: DType, size: int) -> Unit:
    return generate(
        header="dnncore/convolution/depthwise_filter_channels.cuh",
        entry=f"convolution_depthwise_filter_bands_{size}x{size}_{c_type(dtype)}",
        function=f"depthwise::filter_of_bands<{c_type(dtype)}, {size}>",
        struct_name="depthwise::FilterChannelsParams",
        dtype=_PARAMS,
        threads=_MAX_THREADS,
    )


DEPTHWISE_CHANNELS_BACKWARD_FILTER = DepthwiseChannelsBackwardFilter()
