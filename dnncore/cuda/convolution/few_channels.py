"""Convolution whose outputs have few channels a group: forward with at most four filters, backward-data with at most four channels.

The last layer of a network that makes images, the gradient of a network's input: a tile of a matrix product would be nearly empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.geometry import taps
from dnncore.cuda.params import ADDRESS, BLEND, FLOATING, c_type, generate, record, struct
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["DIRECT_FEW_CHANNELS", "FewChannelsConvolution"]

_MOST_CHANNELS = 4
_THREADS = 128
_TILE_ROWS, _TILE_COLUMNS = 16, 32
_MOST_TAPS = 1024
"""Whose weights for one channel the shared memory has room for, in float64."""

_MOST = 2**30
"""Places, steps and blocks are counted in 32 bits."""

# Of the estimate [not measured]: the share of the multiply-adds that it reaches, of four channels per output, and a block's cycles
# for one channel and tap.
_OF_PRODUCTS = 0.3587
_STEP_CYCLES = 51.48
# From an H200: a tap takes as long as so many channels before the first (depthwise layers), and all takes so much longer where
# neighbours in a row are no neighbours in memory (a gradient in NHWC).
_TAP_CHANNELS = 12
_STRIDED_FACTOR = 16
_LAUNCHES = 1.5

_AXIS = struct(
    ("input", "<i4"),
    ("output", "<i4"),
    ("taps", "<i4"),
    ("first", "<i4"),
    ("tap_step", "<i4"),
    ("input_step", "<i4"),
    ("phases", "<i4"),
    ("taps_apart", "<i4"),
    ("tiles", "<i4"),
)
_PARAMS = struct(
    *BLEND,
    ("input", ADDRESS),
    ("weights", ADDRESS),
    ("output", ADDRESS),
    ("rows", _AXIS),
    ("columns", _AXIS),
    ("input_strides", "<i8", 4),
    ("output_strides", "<i8", 4),
    ("weight_strides", "<i8", 4),
    ("weight_group", "<i8"),
    ("weight_offset", "<i8"),
    ("in_channels", "<i4"),
    ("out_channels", "<i4"),
    ("groups", "<i4"),
    ("zeros", "<i4"),
)
_FIELDS = {
    Direction.FORWARD: ("input", "weights", "output"),
    Direction.BACKWARD_DATA: ("weights", "input", "output"),
}


@cache
def _unit(dtype: DType) -> Unit:
    return generate(
        header="dnncore/convolution/few_channels.cuh",
        entry=f"convolution_few_channels_{c_type(dtype)}",
        function=f"few_channels::convolve<{c_type(dtype)}>",
        struct_name="few_channels::Params",
        dtype=_PARAMS,
        threads=_THREADS,
    )


class _Axis(NamedTuple):
    """An _AXIS."""

    input: int
    output: int
    taps: int
    first: int
    tap_step: int
    input_step: int
    phases: int
    taps_apart: int
    tiles: int


@dataclass(frozen=True, slots=True)
class _Roles:
    """What the tensors are to the kernel. Immutable.

    Args:
        read: The tensor that is read beside the filter.
        written: The one that is written.
        in_channels: Channels of a group of the first.
        out_channels: Of the second.
    """

    read: TensorDescriptor
    written: TensorDescriptor
    in_channels: int
    out_channels: int

    @classmethod
    def of(cls, problem: ConvolutionProblem) -> _Roles:
        filters = problem.w.shape[0] // problem.convolution.groups
        if problem.direction is Direction.FORWARD:
            return cls(problem.x, problem.y, problem.w.shape[1], filters)
        return cls(problem.y, problem.x, filters, problem.w.shape[1])


def _out_channels(problem: ConvolutionProblem) -> int:
    """Channels of a group of what is written."""
    is_forward = problem.direction is Direction.FORWARD
    return problem.w.shape[0] // problem.convolution.groups if is_forward else problem.w.shape[1]


def _planar(values: Sequence[int], missing: int) -> tuple[int, ...]:
    """The last two of values, with `missing` for a first one that is not there."""
    return (missing,) * (2 - len(values)) + tuple(values)


def _ceiling(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _axes(problem: ConvolutionProblem, roles: _Roles) -> list[_Axis]:
    """Rows and columns. Backward, input place = (output place + padding - tap * dilation) / stride."""
    conv, forward = problem.convolution, problem.direction is Direction.FORWARD
    axes = []
    for tile, extent, places, count, padding, stride, dilation in zip(
        (_TILE_ROWS, _TILE_COLUMNS),
        _planar(roles.read.shape[2:], 1),
        _planar(roles.written.shape[2:], 1),
        _planar(problem.w.shape[2:], 1),
        _planar([before for before, _ in conv.padding], 0),
        _planar(conv.stride, 1),
        _planar(conv.dilation, 1),
        strict=True,
    ):
        phases = 1 if forward else stride
        axes.append(
            _Axis(
                input=extent,
                output=places,
                taps=count,
                first=-padding if forward else padding,
                tap_step=dilation if forward else -dilation,
                input_step=stride if forward else 1,
                phases=phases,
                taps_apart=phases // math.gcd(phases, dilation),
                tiles=_ceiling(_ceiling(places, phases), tile),
            )
        )
    return axes


def _blocks(problem: ConvolutionProblem, axes: Sequence[_Axis]) -> int:
    return math.prod(axis.tiles * axis.phases for axis in axes) * problem.x.shape[0] * problem.convolution.groups


def _why_not(problem: ConvolutionProblem, roles: _Roles) -> str | None:
    """None unless a limit of the kernel is in the way that can be told without counting blocks."""
    conv, num_taps = problem.convolution, math.prod(problem.w.shape[2:])
    if conv.spatial_ndim > 2:
        return f"{conv.spatial_ndim} spatial dimensions; at most 2"
    if roles.out_channels > _MOST_CHANNELS:
        return f"outputs have {roles.out_channels} channels a group; at most {_MOST_CHANNELS}"
    if num_taps > _MOST_TAPS:
        return f"{num_taps} taps; at most {_MOST_TAPS}"
    reaches = (
        extent * step + sum(padding) + size + stride * _TILE_COLUMNS
        for extent, step, padding, size, stride in zip(
            problem.w.shape[2:], conv.dilation, conv.padding, roles.read.shape[2:], conv.stride, strict=True
        )
    )
    if max(*reaches, *problem.x.shape, *problem.y.shape) >= _MOST:
        return f"extents and steps are counted to {_MOST}"
    return None


@dataclass(frozen=True)
class FewChannelsConvolution(Bounded, Selective):
    """A thread has all channels of four outputs; no workspace. Immutable."""

    name: str = "direct_few_channels"

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_unit(dtype) for dtype in FLOATING)

    def suits(self, kind: ConvolutionKind) -> bool:
        """All but filter gradients."""
        return kind.direction is not Direction.BACKWARD_FILTER and len(kind.taps) <= 2 and kind.dtypes[0].is_floating

    def least_seconds(self, problem: ConvolutionProblem, _figures: DeviceFigures) -> float:
        """Infinite where there are too many channels; else nothing is known without its axes."""
        return math.inf if _out_channels(problem) > _MOST_CHANNELS else 0.0

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What it takes, or the reason why it does not suit the problem."""
        if problem.direction is Direction.BACKWARD_FILTER:
            return "it has no backward-filter"
        if problem.x.dtype not in FLOATING:
            return f"there is no kernel for {problem.x.dtype.value}"
        roles = _Roles.of(problem)
        reason = _why_not(problem, roles)
        if reason is not None:
            return reason
        axes = _axes(problem, roles)
        blocks = _blocks(problem, axes)
        if blocks > _MOST:
            return f"{blocks} blocks; at most {_MOST}"
        return Offer(_seconds(problem, figures, roles, axes), partial(_calls, problem, roles, axes, blocks))


def _seconds(problem: ConvolutionProblem, figures: DeviceFigures, roles: _Roles, axes: Sequence[_Axis]) -> float:
    """Time of the multiplications of four channels per output, or of those of one block if there are few."""
    phases = math.prod(axis.phases for axis in axes)
    steps = (roles.in_channels + _TAP_CHANNELS) * math.prod(problem.w.shape[2:]) / phases  # of a block
    if roles.read.strides[-1] != 1:
        steps *= _STRIDED_FACTOR
    outputs = roles.written.size // max(roles.out_channels, 1)
    rate = figures.products_per_second(Maths.of(problem.x.dtype.compute)) * _OF_PRODUCTS
    busy = outputs * steps * _MOST_CHANNELS / rate
    return _LAUNCHES * figures.launch_seconds + max(busy, steps * _STEP_CYCLES / figures.clock_hz)


def _calls(problem: ConvolutionProblem, roles: _Roles, axes: Sequence[_Axis], blocks: int) -> Calls:
    w, conv, read, written = problem.w, problem.convolution, roles.read, roles.written
    w_offset, w_taps = taps(w.shape[2:], w.strides[2:], conv)
    channels = w.strides[:2] if problem.direction is Direction.FORWARD else w.strides[1::-1]
    params = record(
        _PARAMS,
        rows=axes[0],
        columns=axes[1],
        input_strides=(*read.strides[:2], *_planar(read.strides[2:], 0)),
        output_strides=(*written.strides[:2], *_planar(written.strides[2:], 0)),
        weight_strides=(*channels, *_planar(w_taps, 0)),
        weight_group=w.shape[0] // conv.groups * w.strides[0],
        weight_offset=w_offset,
        in_channels=roles.in_channels,
        out_channels=roles.out_channels,
        groups=conv.groups,
        zeros=problem.direction is Direction.FORWARD,
    )
    return kernel_call(
        _unit(problem.x.dtype),
        blocks if written.size else 0,
        _THREADS,
        params,
        in_order(*_FIELDS[problem.direction]),
    )


DIRECT_FEW_CHANNELS = FewChannelsConvolution()
