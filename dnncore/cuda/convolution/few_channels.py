"""Convolution whose outputs have few channels a group: forward with at most four filters, backward-data with at most four channels.

The last layer of a network that makes images, the gradient of a network's input: a tile of a matrix product would be nearly empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.geometry import taps
from dnncore.cuda.launch import Unit, single
from dnncore.cuda.params import ADDRESS, BLEND, FLOATING, c_type, generate, record, struct
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["DIRECT_FEW_CHANNELS", "FewChannelsConvolution"]

_MOST_CHANNELS = 4
_THREADS = 128
_TILE_ROWS, _TILE_COLUMNS = 16, 32
_MOST_TAPS = 1024
"""Whose weights for one channel the shared memory has room for, in float64."""

_MOST = 2**30
"""Places, steps and blocks are counted in 32 bits."""

# Of `seconds` [not measured]: multiplications a second, of four channels an output, and a block's time for one channel and tap.
_RATE = {DType.FLOAT32: 12e12, DType.FLOAT64: 6e12}
_STEP_SECONDS = 26e-9
# From an H200: a tap takes as long as so many channels before the first (depthwise layers), and all takes so much longer where
# neighbours in a row are no neighbours in memory (a gradient in NHWC).
_TAP_CHANNELS = 12
_STRIDED_FACTOR = 16
_LAUNCH_SECONDS = 6e-6

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
    Direction.FORWARD: (("input", "weights"), ("output",)),
    Direction.BACKWARD_DATA: (("weights", "input"), ("output",)),
}


def _unit(dtype: DType) -> Unit:
    return generate(
        header="dnncore/convolution/few_channels.cuh",
        entry=f"convolution_few_channels_{c_type(dtype)}",
        function=f"few_channels::convolve<{c_type(dtype)}>",
        struct_name="few_channels::Params",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def _operands(problem: ConvolutionProblem) -> tuple[TensorDescriptor, TensorDescriptor, int, int]:
    """The tensor that is read beside the filter, the one that is written, and the channels of a group of each."""
    filters = problem.w.shape[0] // problem.convolution.groups
    if problem.direction is Direction.FORWARD:
        return problem.x, problem.y, problem.w.shape[1], filters
    return problem.y, problem.x, filters, problem.w.shape[1]


def _planar(values: Sequence[int], missing: int) -> tuple[int, ...]:
    """The last two of values, with `missing` for a first one that is not there."""
    return (missing,) * (2 - len(values)) + tuple(values)


def _ceiling(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _axes(problem: ConvolutionProblem) -> list[np.ndarray]:
    """Rows and columns. Backward, input place = (output place + padding - tap * dilation) / stride."""
    conv, (read, written, *_) = problem.convolution, _operands(problem)
    forward = problem.direction is Direction.FORWARD
    axes = []
    for tile, extent, places, count, padding, stride, dilation in zip(
        (_TILE_ROWS, _TILE_COLUMNS),
        _planar(read.shape[2:], 1),
        _planar(written.shape[2:], 1),
        _planar(problem.w.shape[2:], 1),
        _planar([before for before, _ in conv.padding], 0),
        _planar(conv.stride, 1),
        _planar(conv.dilation, 1),
        strict=True,
    ):
        phases = 1 if forward else stride
        axes.append(
            record(
                _AXIS,
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


def _blocks(problem: ConvolutionProblem, axes: Sequence[np.ndarray]) -> int:
    tiles = math.prod(int(axis["tiles"]) * int(axis["phases"]) for axis in axes)
    return tiles * problem.x.shape[0] * problem.convolution.groups


@dataclass(frozen=True)
class FewChannelsConvolution:
    """A thread has all channels of four outputs; no workspace. Immutable."""

    name: str = "direct_few_channels"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: ConvolutionProblem, device: CudaDevice | None) -> str | None:  # noqa: ARG002 (the Protocol's)
        """None when it can solve the problem, else the reason why not."""
        if problem.direction is Direction.BACKWARD_FILTER:
            return "it has no backward-filter"
        if problem.x.dtype not in FLOATING:
            return f"there is no kernel for {problem.x.dtype.value}"
        if problem.convolution.spatial_ndim > 2:
            return f"{problem.convolution.spatial_ndim} spatial dimensions; at most 2"
        read, _, _, channels = _operands(problem)
        if channels > _MOST_CHANNELS:
            return f"outputs have {channels} channels a group; at most {_MOST_CHANNELS}"
        if math.prod(problem.w.shape[2:]) > _MOST_TAPS:
            return f"{math.prod(problem.w.shape[2:])} taps; at most {_MOST_TAPS}"
        conv, axes = problem.convolution, _axes(problem)
        reaches = (
            extent * step + sum(padding) + size + stride * _TILE_COLUMNS
            for extent, step, padding, size, stride in zip(
                problem.w.shape[2:], conv.dilation, conv.padding, read.shape[2:], conv.stride, strict=True
            )
        )
        if max(*reaches, *problem.x.shape, *problem.y.shape) >= _MOST:
            return f"extents and steps are counted to {_MOST}"
        blocks = _blocks(problem, axes)
        return f"{blocks} blocks; at most {_MOST}" if blocks > _MOST else None

    def seconds(self, problem: ConvolutionProblem) -> float:
        """Estimated time on an H200: the multiplications of four channels an output, or those of one block if there are few."""
        if self.supports(problem, None) is not None:
            return math.inf
        read, written, in_channels, out_channels = _operands(problem)
        phases = math.prod(int(axis["phases"]) for axis in _axes(problem))
        steps = (in_channels + _TAP_CHANNELS) * math.prod(problem.w.shape[2:]) / phases  # of a block
        if read.strides[-1] != 1:
            steps *= _STRIDED_FACTOR
        outputs = written.size // max(out_channels, 1)
        multiplications = outputs * steps * _MOST_CHANNELS / _RATE[problem.x.dtype.compute]
        return _LAUNCH_SECONDS + max(multiplications, steps * _STEP_SECONDS)

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_unit(dtype) for dtype in FLOATING)

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        conv, (read, written, in_channels, out_channels) = problem.convolution, _operands(problem)
        axes = _axes(problem)
        w_offset, w_taps = taps(problem.w.shape[2:], problem.w.strides[2:], conv)
        channels = problem.w.strides[:2] if problem.direction is Direction.FORWARD else problem.w.strides[1::-1]
        params = record(
            _PARAMS,
            rows=axes[0],
            columns=axes[1],
            input_strides=(*read.strides[:2], *_planar(read.strides[2:], 0)),
            output_strides=(*written.strides[:2], *_planar(written.strides[2:], 0)),
            weight_strides=(*channels, *_planar(w_taps, 0)),
            weight_group=problem.w.shape[0] // conv.groups * problem.w.strides[0],
            weight_offset=w_offset,
            in_channels=in_channels,
            out_channels=out_channels,
            groups=conv.groups,
            zeros=problem.direction is Direction.FORWARD,
        )
        return single(
            device.kernel(_unit(problem.x.dtype)),
            (_blocks(problem, axes) if written.size else 0, 1, 1),
            (_THREADS, 1, 1),
            params,
            *_FIELDS[problem.direction],
        )


DIRECT_FEW_CHANNELS = FewChannelsConvolution()
