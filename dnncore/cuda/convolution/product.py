"""The three directions of a convolution as products of matrices that are never formed.

Every direction gathers one operand (B) through the filter: its coordinate along an axis is a first place plus a step for each of
two digits, the outer one and the one that is summed over.

    forward          y[k, (n, p)]   = sum over (c, r)  w[k, (c, r)]  * x[n, c, p * stride - padding + r * dilation]
    backward-data    dx[c, (n, h)]  = sum over (k, r)  w[k, (c, r)]  * dy[n, k, (h + padding - r * dilation) / stride]
    backward-filter  dw[k, (c, r)]  = sum over (n, p)  dy[k, (n, p)] * x[n, c, p * stride - padding + r * dilation]

The division in backward-data is exact only for some r: those are the same for all h with the same remainder of h + padding by
the stride. Each combination of remainders is a dense product of its own, a *phase*, in which no tap is wasted. Formulas: arXiv
1410.0759, section 3, with dilation and groups added. Pure: nothing knows of a device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from dnncore.cuda.gemm import Digit, Extents, Outline, Phase, Product
from dnncore.descriptors import ConvolutionMode
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["convolution_outline", "convolution_product"]

_VECTOR_BYTES = 16

_MIN_GROUP_ROWS = 4
"""Fewest rows that a group's product must have; with fewer, nearly all of every tile hangs over the edge."""

_MAX_PHASES = 64


class _Axis(NamedTuple):
    """One spatial axis of one phase. Immutable.

    Args:
        outer: Extent of the outer digit (of the column).
        summed: Extent of the digit that is summed over.
        outer_step: Coordinates of B per step of the outer digit.
        summed_step: The same for the one summed over.
        first: Coordinate of B where both are 0.
        bound: Extent of B.
        b_stride: Elements of B per coordinate.
        c_stride: Elements of C per step of the outer digit.
        a_stride: Elements of A per step of the digit summed over.
        a_offset: Elements of A where that digit is 0.
        c_offset: Elements of C where the outer digit is 0.
    """

    outer: int
    summed: int
    outer_step: int
    summed_step: int
    first: int
    bound: int
    b_stride: int
    c_stride: int
    a_stride: int
    a_offset: int = 0
    c_offset: int = 0

    @property
    def stays_inside(self) -> bool:
        """Whether no coordinate is out of bounds."""
        if self.outer == 0 or self.summed == 0:
            return True
        across, along = (self.outer - 1) * self.outer_step, (self.summed - 1) * self.summed_step
        corners = self.first, self.first + across, self.first + along, self.first + across + along
        return min(corners) >= 0 and max(corners) < self.bound


def _phase(axes: Sequence[_Axis], padded: Sequence[int], outer: Digit, summed: Digit) -> Phase:
    """Build a phase from its axes and the two digits that are not spatial: batch and channels, one each way.

    Args:
        axes: The spatial axes.
        padded: Those of them on which any phase can be out of bounds.
        outer: The digit of the column.
        summed: The digit of the reduction.
    """
    nowhere = (0,) * len(padded)
    column = [Digit(outer.extent, outer.b_stride, outer.other_stride, nowhere)]
    reduction = [Digit(summed.extent, summed.b_stride, summed.other_stride, nowhere)]
    a_offset = b_offset = c_offset = 0
    for i, axis in enumerate(axes):
        across, along, across_step, along_step, first, _, b_stride, c_stride, a_stride, of_a, of_c = axis
        across_steps = along_steps = nowhere
        if i in padded:
            before = padded.index(i)
            others, behind = nowhere[:before], nowhere[before + 1 :]
            across_steps, along_steps = (*others, across_step, *behind), (*others, along_step, *behind)
        column.append(Digit(across, across_step * b_stride, c_stride, across_steps))
        reduction.append(Digit(along, along_step * b_stride, a_stride, along_steps))
        a_offset += of_a
        b_offset += first * b_stride
        c_offset += of_c
    first_places = tuple([axes[i].first for i in padded])
    return Phase.of(column, reduction, a_offset=a_offset, b_offset=b_offset, c_offset=c_offset, first=first_places)


def _phases(axes: Sequence[Sequence[_Axis]], outer: Digit, summed: Digit) -> tuple[tuple[int, ...], tuple[Phase, ...]]:
    """Build the phases and the bounds that they share.

    Args:
        axes: What each axis may be: there is a phase for each combination.
        outer: The digit of the column that is not spatial: batch or channels.
        summed: The digit of the reduction that is not.
    """
    padded = [i for i, each in enumerate(axes) if not all(axis.stays_inside for axis in each)]
    bounds = tuple([axes[i][0].bound for i in padded])
    return bounds, tuple([_phase(each, padded, outer, summed) for each in itertools.product(*axes)])


def _taps(problem: ConvolutionProblem, axis: int, first: int = 0, step: int = 1) -> tuple[int, int]:
    """(offset, stride) in w of the taps first, first + step, ...; a true convolution's filter is rotated."""
    stride, extent = problem.w.strides[2 + axis], problem.w.shape[2 + axis]
    if problem.convolution.mode is ConvolutionMode.CONVOLUTION:
        return (extent - 1 - first) * stride, -step * stride
    return first * stride, step * stride


def _forward(problem: ConvolutionProblem) -> Product:
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    filters = w.shape[0] // conv.groups

    def axis(i: int) -> _Axis:
        offset, stride = _taps(problem, i)
        return _Axis(
            outer=y.shape[2 + i], summed=w.shape[2 + i], outer_step=conv.stride[i], summed_step=conv.dilation[i],
            first=-conv.padding[i][0], bound=x.shape[2 + i], b_stride=x.strides[2 + i], c_stride=y.strides[2 + i],
            a_stride=stride, a_offset=offset,
        )  # fmt: skip

    bounds, phases = _phases(
        [[axis(i)] for i in range(conv.spatial_ndim)],
        Digit(x.shape[0], x.strides[0], y.strides[0]),
        Digit(w.shape[1], x.strides[1], w.strides[1]),
    )
    return Product(
        dtype=x.dtype, rows=filters, a_row_stride=w.strides[0], c_row_stride=y.strides[1], groups=conv.groups,
        a_group_stride=filters * w.strides[0], b_group_stride=w.shape[1] * x.strides[1],
        c_group_stride=filters * y.strides[1], bounds=bounds, phases=phases, inputs=("b", "a"), output=y.dtype,
    )  # fmt: skip


def _backward_filter(problem: ConvolutionProblem) -> Product:
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    filters = w.shape[0] // conv.groups

    def axis(i: int) -> _Axis:
        offset, stride = _taps(problem, i)
        return _Axis(
            outer=w.shape[2 + i], summed=y.shape[2 + i], outer_step=conv.dilation[i], summed_step=conv.stride[i],
            first=-conv.padding[i][0], bound=x.shape[2 + i], b_stride=x.strides[2 + i], c_stride=stride,
            a_stride=y.strides[2 + i], c_offset=offset,
        )  # fmt: skip

    bounds, phases = _phases(
        [[axis(i)] for i in range(conv.spatial_ndim)],
        Digit(w.shape[1], x.strides[1], w.strides[1]),
        Digit(x.shape[0], x.strides[0], y.strides[0]),
    )
    return Product(
        dtype=x.dtype, rows=filters, a_row_stride=y.strides[1], c_row_stride=w.strides[0], groups=conv.groups,
        a_group_stride=filters * y.strides[1], b_group_stride=w.shape[1] * x.strides[1],
        c_group_stride=filters * w.strides[0], bounds=bounds, phases=phases, inputs=("b", "a"), output=w.dtype,
    )  # fmt: skip


def _backward_data_axis(problem: ConvolutionProblem, i: int, remainder: int) -> _Axis:
    """One axis for the places h of dx with (h + padding) % stride == remainder."""
    x, y, conv = problem.x, problem.y, problem.convolution
    stride, dilation, padding = conv.stride[i], conv.dilation[i], conv.padding[i][0]
    # The taps with r * dilation % stride == remainder, if there are any, are every `period`-th one.
    period = stride // math.gcd(stride, dilation)
    first_tap = next((r for r in range(period) if (remainder - r * dilation) % stride == 0), problem.w.shape[2 + i])
    first_place = (remainder - padding) % stride
    offset, tap_stride = _taps(problem, i, first_tap, period)
    return _Axis(
        outer=len(range(first_place, x.shape[2 + i], stride)), summed=len(range(first_tap, problem.w.shape[2 + i], period)),
        outer_step=1, summed_step=-(dilation * period // stride),
        first=(first_place + padding - first_tap * dilation) // stride, bound=y.shape[2 + i], b_stride=y.strides[2 + i],
        c_stride=stride * x.strides[2 + i], a_stride=tap_stride, a_offset=offset, c_offset=first_place * x.strides[2 + i],
    )  # fmt: skip


def _backward_data(problem: ConvolutionProblem) -> Product:
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    filters, channels = w.shape[0] // conv.groups, w.shape[1]
    # Of the remainders only those that some place of dx has.
    axes = [
        [_backward_data_axis(problem, i, (h + conv.padding[i][0]) % stride) for h in range(min(stride, x.shape[2 + i]))]
        for i, stride in enumerate(conv.stride)
    ]
    if not all(axes):
        axes = [[_backward_data_axis(problem, i, 0)] for i in range(conv.spatial_ndim)]  # dx is empty
    bounds, phases = _phases(
        axes,
        Digit(x.shape[0], y.strides[0], x.strides[0]),
        Digit(filters, y.strides[1], w.strides[0]),
    )
    return Product(
        dtype=x.dtype, rows=channels, a_row_stride=w.strides[1], c_row_stride=x.strides[1], groups=conv.groups,
        a_group_stride=filters * w.strides[0], b_group_stride=filters * y.strides[1],
        c_group_stride=channels * x.strides[1], bounds=bounds, phases=phases, inputs=("a", "b"),
    )  # fmt: skip


_DIRECTIONS = {
    Direction.FORWARD: _forward,
    Direction.BACKWARD_DATA: _backward_data,
    Direction.BACKWARD_FILTER: _backward_filter,
}


def convolution_product(problem: ConvolutionProblem) -> Product | str:
    """Describe a convolution as a product; a reason instead where tiles do not suit it."""
    return _why_none(problem) or _DIRECTIONS[problem.direction](problem)


@lru_cache(maxsize=8)  # all tiled algorithms ask
def convolution_outline(problem: ConvolutionProblem) -> Outline | None:
    """What is known of that product without making it; None where there is none, or nothing to multiply."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    if not (x.size and w.size and y.size) or _why_none(problem) is not None:
        return None
    groups = conv.groups
    rows, places, taps = w.shape[0] // groups, y.shape[0] * math.prod(y.shape[2:]), math.prod(w.shape[1:])
    if problem.direction is Direction.FORWARD:
        phases: tuple[tuple[int, int], ...] = ((places, taps),)
    elif problem.direction is Direction.BACKWARD_FILTER:
        phases = ((taps, places),)
    else:
        phases, rows = _backward_data_phases(problem, rows), w.shape[1]
    return Outline(Extents(x.dtype, rows, groups, phases), _may_read_vectors(problem), _column_runs(problem))


def _column_runs(problem: ConvolutionProblem) -> tuple[int, ...]:
    """What the fastest digit of a column may count where that is pixels of a row, which lie side by side, as those of NCHW do."""
    conv, forward = problem.convolution, problem.direction is Direction.FORWARD
    if problem.direction is Direction.BACKWARD_FILTER or not (forward or max(conv.stride) == 1):
        return ()
    read, written = (problem.x, problem.y) if forward else (problem.y, problem.x)
    if written.shape[-1] == 1 or written.strides[-1] != 1 or read.strides[-1] != 1:
        return ()
    *others, along = conv.stride
    extents, steps = (written.shape[0], *written.shape[2:-1]), (read.strides[0], *map(mul, others, read.strides[2:-1]))
    if any(extent > 1 and step <= along for extent, step in zip(extents, steps, strict=True)):
        return ()
    return tuple(accumulate((*written.shape[:1:-1], written.shape[0]), mul))  # rows and images may be counted along


def _backward_data_phases(problem: ConvolutionProblem, filters: int) -> tuple[tuple[int, int], ...]:
    """Columns and summands of each phase, as `_backward_data` has them."""
    x, w, conv = problem.x, problem.w, problem.convolution
    phases = [(x.shape[0], filters)]
    for extent, taps, stride, dilation, (padding, _) in zip(
        x.shape[2:], w.shape[2:], conv.stride, conv.dilation, conv.padding, strict=True
    ):
        period = stride // math.gcd(stride, dilation)
        along = [
            (
                len(range(place, extent, stride)),
                next(
                    (
                        len(range(r, taps, period))
                        for r in range(period)
                        if (place + padding - r * dilation) % stride == 0
                    ),
                    0,
                ),
            )
            for place in range(min(stride, extent))
        ]
        phases = [(columns * places, summands * count) for columns, summands in phases for places, count in along]
    return tuple(phases)


def _may_read_vectors(problem: ConvolutionProblem) -> bool:
    """Whether both operands may be read 16 bytes at a time.

    Of the one that is gathered, not where only taps are beside each other in memory; of pixels of a row only where those of each
    channel and each image begin at multiples of 16 bytes; and of channels only where neighbouring pixels do.
    """
    conv, backward = problem.convolution, problem.direction is Direction.BACKWARD_DATA
    gathered = problem.y if backward else problem.x
    vector = _VECTOR_BYTES // gathered.dtype.itemsize
    rows, step = _rows(problem)
    if rows > 1 and step % vector and (step != 1 or rows % vector):
        return False
    if 1 in gathered.strides[:2]:
        if 1 in (gathered.strides[0], gathered.shape[1]):
            return True
        stride = conv.stride[-1]
        has_neighbours = problem.x.shape[-1] > stride if backward else problem.y.shape[-1] > 1
        return not has_neighbours or gathered.strides[-1] * (1 if backward else stride) % vector == 0
    (images, channels), (of_image, of_channel) = gathered.shape[:2], gathered.strides[:2]
    if channels > conv.groups and (of_channel % vector or (images > 1 and of_image % vector)):
        return False
    return any(
        step == 1 and (taps <= stride or dilation > 1)
        for step, taps, stride, dilation in zip(
            gathered.strides[2:], problem.w.shape[2:], conv.stride, conv.dilation, strict=True
        )
    )


def _rows(problem: ConvolutionProblem) -> tuple[int, int]:
    """Rows of a group's product, and elements from one row of A to the next."""
    w, groups = problem.w, problem.convolution.groups
    if problem.direction is Direction.BACKWARD_DATA:
        return w.shape[1], w.strides[1]
    return w.shape[0] // groups, w.strides[0] if problem.direction is Direction.FORWARD else problem.y.strides[1]


def _why_none(problem: ConvolutionProblem) -> str | None:
    """None where tiles suit a convolution, else the reason."""
    conv = problem.convolution
    rows = problem.w.shape[1] if problem.direction is Direction.BACKWARD_DATA else problem.w.shape[0] // conv.groups
    if conv.groups > 1 and rows < _MIN_GROUP_ROWS:
        return f"each of its {conv.groups} groups has {rows} rows; tiles need at least {_MIN_GROUP_ROWS}"
    num_phases = math.prod(conv.stride)
    if problem.direction is Direction.BACKWARD_DATA and num_phases > _MAX_PHASES:
        return f"stride {conv.stride} makes {num_phases} dense products; at most {_MAX_PHASES}"
    return None
