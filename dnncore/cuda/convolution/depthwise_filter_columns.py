"""The filter gradient of a depthwise 3x3 convolution of stride 1 of channels-last images: threads walk down columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.calls import WORKSPACE, Calls, Place, WhereAligned, kernel_call
from dnncore.cuda.convolution.depthwise import DEPTHWISE
from dnncore.cuda.convolution.depthwise_filter import filter_sum_units, prepare_filter_sum
from dnncore.cuda.convolution.depthwise_plane import Plane
from dnncore.cuda.convolution.depthwise_tiles import step
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate_together, record, small_divisor, struct
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["DEPTHWISE_COLUMNS_BACKWARD_FILTER"]

_AHEAD = {DType.FLOAT16: 2, DType.BFLOAT16: 1, DType.FLOAT32: 1}
"""Rows that are on their way, as far as there are registers: of bfloat16 the compiler takes more."""

_COLUMNS, _WIDTH, _THREADS = 4, 4, 128
"""kStripColumns, kStripWidth and kColumnWalkThreads in depthwise_filter_columns.cuh."""

_BLOCKS = 3
"""Per multiprocessor, for which the compiler limits registers: more have too few of them."""

_REGISTERS = 168
"""Of a thread [most of those for sm_90a in the gates' baseline]."""

_LEAST_ROWS = 8
"""Of a part, beside which two more rows of dy are read [assumed]."""

_OF_MEMORY_RATE = 0.92
"""Measured on an H200 with a prototype: 109 and 214 us in 16 and 32 bits for 64 x 128 x 112 x 112."""

_MAX_EXTENT = 2**31

_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "dy", "parts")),
    ("image", "<i8"),
    ("row", "<i4"),
    ("column", "<i4"),
    ("rows", SMALL_DIVISOR),
    ("groups", SMALL_DIVISOR),
    *((name, "<i4") for name in ("columns", "count", "num_parts", "filters", "chunks", "vectors")),
)


@dataclass(frozen=True, slots=True)
class _Walks:
    """How a problem is cut into strips and parts. Immutable.

    Args:
        problem: What is cut.
        vectors: Vectors of channels of a block, a power of two.
        blocks: That run at a time.
    """

    problem: ConvolutionProblem
    vectors: int
    blocks: int

    @property
    def chunks(self) -> int:
        """Of channels."""
        return -(-self.problem.x.shape[1] // (_WIDTH * self.vectors))

    @property
    def groups(self) -> int:
        """Of strips, in a row."""
        return -(-self.problem.x.shape[3] // self._group_columns)

    @property
    def count(self) -> int:
        """Rows of all groups of all images."""
        return self.problem.x.shape[0] * self.groups * self.problem.x.shape[2]

    @property
    def num_parts(self) -> int:
        """As many as let all blocks run at once, of no fewer rows than pay."""
        return max(min(self.blocks // self.chunks, self.count // _LEAST_ROWS), 1)

    @property
    def waste(self) -> float:
        """How many times as long it takes for idle threads and multiprocessors, and for rows that are read twice."""
        columns = self.groups * self._group_columns / self.problem.x.shape[3]
        channels = self.chunks * self.vectors * _WIDTH / self.problem.x.shape[1]
        idle = self.blocks / (self.chunks * self.num_parts)
        return columns * channels * max(idle, 1.0) * (1 + self.num_parts / self.count)

    @property
    def _group_columns(self) -> int:
        return _THREADS // self.vectors * _COLUMNS


def _why_not(problem: ConvolutionProblem) -> str | None:
    """None where the kernels can solve it, given vectors of channels, else the reason why not."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    if problem.direction is not Direction.BACKWARD_FILTER:
        return f"it is for filter gradients, not {problem.direction.value}"
    if x.dtype not in _AHEAD:
        return f"x is of {x.dtype.value}; there are kernels for {', '.join(dtype.value for dtype in _AHEAD)}"
    if w.shape[1:] != (1, 3, 3) or w.shape[0] != x.shape[1]:
        return f"w is {w.shape}; one filter of 3 x 3 for each channel is needed"
    if conv.stride != (1, 1) or conv.dilation != (1, 1) or conv.padding != ((1, 1), (1, 1)):
        return f"stride {conv.stride}, dilation {conv.dilation}, padding {conv.padding}; all must be 1"
    if not x.size:
        return "there is nothing to add up"
    if x.shape[3] % _COLUMNS:
        return f"rows of {x.shape[3]} are no whole strips of {_COLUMNS}"
    if x.strides != y.strides:
        return f"strides of x {x.strides} and dy {y.strides} differ"
    if any(x.shape[axis] * abs(x.strides[axis]) * x.dtype.itemsize >= _MAX_EXTENT for axis in (2, 3)):
        return "an image has 2^31 bytes or more"
    if x.shape[0] * x.shape[2] * x.shape[3] >= _MAX_EXTENT:
        return f"{x.shape[0]} images have 2^31 places or more"
    return None


@dataclass(frozen=True, slots=True)
class DepthwiseColumnsBackwardFilter(Bounded, Selective):
    """Nine taps of four channels per thread, which walks down four columns. Immutable."""

    name: str = "depthwise_columns"

    def suits(self, kind: ConvolutionKind) -> bool:
        """Filter gradients, where each filter sees one channel."""
        return kind.sees_one_channel and kind.direction is Direction.BACKWARD_FILTER

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What both images take at least; infinite where there are no kernels."""
        if _why_not(problem) is not None:
            return math.inf
        return 2 * figures.launch_seconds + _memory_seconds(problem, figures)

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """For aligned addresses by its own kernel, for others by `DEPTHWISE`'s; parts are in the workspace."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        plane = Plane.of(problem)
        if not plane.vectors:
            return f"channels of x and dy do not come in vectors of {_WIDTH}"
        otherwise = DEPTHWISE.offer(problem, figures)
        if isinstance(otherwise, str):
            return otherwise
        blocks = figures.multiprocessors * figures.resident_blocks(_THREADS, _REGISTERS)
        walks = _Walks(problem, plane.vectors, blocks)
        parts = walks.num_parts * problem.w.size * problem.x.dtype.compute.itemsize
        seconds = 2 * figures.launch_seconds + _memory_seconds(problem, figures) * walks.waste
        return Offer(
            seconds, partial(_prepare, problem, plane, walks, otherwise), max(parts, otherwise.workspace_bytes)
        )

    def units(self) -> tuple[Unit, ...]:
        """Every unit that it can launch."""
        return (*map(_unit, _AHEAD), *filter_sum_units(), *DEPTHWISE.units())


def _memory_seconds(problem: ConvolutionProblem, figures: DeviceFigures) -> float:
    return (problem.x.nbytes + problem.y.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)


def _prepare(problem: ConvolutionProblem, plane: Plane, walks: _Walks, otherwise: Offer) -> Calls:
    x = problem.x
    params = record(
        _PARAMS,
        alpha=1.0,
        image=step(x, 0),
        row=step(x, 2),
        column=step(x, 3),
        rows=small_divisor(x.shape[2]),
        groups=small_divisor(walks.groups),
        columns=x.shape[3],
        count=walks.count,
        num_parts=walks.num_parts,
        filters=x.shape[1],
        chunks=walks.chunks,
        vectors=walks.vectors,
    )
    to_parts = kernel_call(
        _unit(x.dtype),
        walks.chunks * walks.num_parts,
        _THREADS,
        params,
        {"x": Place(0), "dy": Place(1), "parts": Place(WORKSPACE)},
        blends=False,
    )
    calls = to_parts + prepare_filter_sum(problem, plane.w_offset, plane.rows_of_columns, walks.num_parts)
    nbytes = _WIDTH * x.dtype.itemsize
    return (WhereAligned(((Place(0), nbytes), (Place(1), nbytes)), calls, otherwise.prepare),)


def _unit(dtype: DType) -> Unit:
    entry = f"convolution_depthwise_filter_columns_{c_type(dtype)}"
    units = generate_together(
        "dnncore/convolution/depthwise_filter_columns.cuh",
        {entry: f"depthwise::filter_of_columns<{c_type(dtype)}, {_AHEAD[dtype]}>"},
        "depthwise::FilterColumnsParams",
        _PARAMS,
        _THREADS,
        blocks=_BLOCKS,
    )
    return units[entry]


DEPTHWISE_COLUMNS_BACKWARD_FILTER = DepthwiseColumnsBackwardFilter()
