"""Gathering patches into columns, and its adjoint; the columns may have any strides, also those that only the library uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.geometry import GEOMETRY, MAX_SPATIAL, geometry, spatial, taps
from dnncore.cuda.params import ADDRESS, BLEND, DIVISOR, FLOATING, c_type, divisor, generate, record, struct
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import Col2ImProblem, Im2ColProblem

__all__ = ["COL2IM", "IM2COL", "Columns", "columns_seconds", "gather", "gather_units", "scatter", "scatter_units"]

_THREADS = 128
_PACK_BYTES = 16
_OF_MEMORY_RATE = 0.05
"""What both kernels reach [not measured, and cautious: the convolution that gathers columns comes behind what was measured]."""

_COLUMN_STRIDES = struct(
    ("batch", "<i8"),
    ("channel", "<i8"),
    ("tap", "<i8", MAX_SPATIAL),
    ("place", "<i8", MAX_SPATIAL),
    ("offset", "<i8"),
)
_PARAMS = struct(
    *BLEND,
    ("input", ADDRESS),
    ("output", ADDRESS),
    ("x_batch", "<i8"),
    ("x_channel", "<i8"),
    ("x_spatial", "<i8", MAX_SPATIAL),
    ("columns", _COLUMN_STRIDES),
    ("geometry", GEOMETRY),
    ("filter", DIVISOR, MAX_SPATIAL),
    ("places", DIVISOR, MAX_SPATIAL),
    ("pixels", DIVISOR, MAX_SPATIAL),
    ("stride", DIVISOR, MAX_SPATIAL),
    ("tap_step", DIVISOR, MAX_SPATIAL),
    ("place_step", DIVISOR, MAX_SPATIAL),
    ("channels", DIVISOR),
    ("packs", DIVISOR),
    ("row_length", "<i8"),
    ("count", "<i8"),
    ("first_axis", "<i4"),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """How the columns of x [N, C, *input] lie in memory: [N, C, *filter, *output]. Immutable.

    Args:
        convolution: How the filter moves.
        filter_shape: Its spatial extents.
        output_shape: Spatial extents of the places it moves to.
        batch: Elements from one image to the next.
        channel: From one channel's rows to the next one's.
        taps: From one of the filter's taps, as it is stored, to the next; one per spatial dimension.
        place: From one place to the next in row-major order.
    """

    convolution: ConvolutionDescriptor
    filter_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    batch: int
    channel: int
    taps: tuple[int, ...]
    place: int

    @classmethod
    def of(cls, problem: Im2ColProblem | Col2ImProblem) -> Columns:
        """The matrix of a problem."""
        batch, row, place = problem.columns.strides
        filter_shape = problem.filter_shape
        steps = [row * step for step in TensorDescriptor.packed(filter_shape).strides]
        channel = row * math.prod(filter_shape)
        return cls(problem.convolution, filter_shape, problem.output_shape, batch, channel, tuple(steps), place)

    @property
    def row_length(self) -> int:
        """Places in a row."""
        return math.prod(self.output_shape)

    def params(self, x: TensorDescriptor) -> np.ndarray:
        """Fill in all but addresses, blending factors and count."""
        conv, packed = self.convolution, TensorDescriptor.packed(self.output_shape)
        offset, steps = taps(self.filter_shape, self.taps, conv)
        shared = [math.gcd(*pair) for pair in zip(conv.stride, conv.dilation, strict=True)]
        columns = record(
            _COLUMN_STRIDES,
            batch=self.batch,
            channel=self.channel,
            tap=spatial(steps, 0),
            place=spatial([self.place * stride for stride in packed.strides], 0),
            offset=offset,
        )
        return record(
            _PARAMS,
            x_batch=x.strides[0],
            x_channel=x.strides[1],
            x_spatial=spatial(x.strides[2:], 0),
            columns=columns,
            geometry=geometry(x.shape[2:], self.filter_shape, self.output_shape, conv),
            filter=_divisors(self.filter_shape),
            places=_divisors(self.output_shape),
            pixels=_divisors(x.shape[2:]),
            stride=_divisors(conv.stride),
            tap_step=_divisors([stride // common for stride, common in zip(conv.stride, shared, strict=True)]),
            place_step=_divisors([step // common for step, common in zip(conv.dilation, shared, strict=True)]),
            channels=divisor(x.shape[1]),
            row_length=self.row_length,
            first_axis=MAX_SPATIAL - conv.spatial_ndim,
        )


def _divisors(values: Sequence[int]) -> list[tuple[int, int, int]]:
    return [divisor(value) for value in spatial(values, 1)]


@cache
def _unit(function: str, dtype: DType) -> Unit:
    return generate(
        header="dnncore/im2col.cuh",
        entry=f"{function}_{c_type(dtype)}",
        function=f"{function}<{c_type(dtype)}>",
        struct_name="Im2ColParams",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def gather(x: TensorDescriptor, columns: Columns, figures: DeviceFigures) -> Calls:
    """Calls from x, operand 0, to columns, operand 1."""
    params = columns.params(x)
    packs = -(-columns.row_length // (_PACK_BYTES // x.dtype.itemsize))
    count = math.prod(x.shape[:2]) * math.prod(columns.filter_shape) * packs
    params["packs"], params["count"] = divisor(packs), count
    blocks = blocks_for(figures, count, _THREADS)
    return kernel_call(_unit("im2col", x.dtype), blocks, _THREADS, params, in_order("input", "output"))


def scatter(x: TensorDescriptor, columns: Columns, figures: DeviceFigures) -> Calls:
    """Calls from columns, operand 0, to x, operand 1."""
    params = columns.params(x)
    params["count"] = x.size
    blocks = blocks_for(figures, x.size, _THREADS)
    return kernel_call(_unit("col2im", x.dtype), blocks, _THREADS, params, in_order("input", "output"))


def columns_seconds(x_bytes: int, columns_bytes: int, figures: DeviceFigures) -> float:
    """Estimated time of a gather or of a scatter: a launch, and x and the columns once through memory."""
    return figures.launch_seconds + (x_bytes + columns_bytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)


def gather_units() -> tuple[Unit, ...]:
    """Every unit that calls of `gather` can name."""
    return tuple(_unit("im2col", dtype) for dtype in (*FLOATING, DType.INT8))


def scatter_units() -> tuple[Unit, ...]:
    """Every unit that calls of `scatter` can name."""
    return tuple(_unit("col2im", dtype) for dtype in FLOATING)


@dataclass(frozen=True, slots=True)
class Im2Col:
    """One thread per 16 bytes of a row of columns. Immutable."""

    name: str = "gather"

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return gather_units()

    def offer(self, problem: Im2ColProblem, figures: DeviceFigures) -> Offer:
        """What it takes; it computes everything that is legal."""
        seconds = columns_seconds(problem.x.nbytes, problem.columns.nbytes, figures)
        return Offer(seconds, partial(gather, problem.x, Columns.of(problem), figures))


@dataclass(frozen=True, slots=True)
class Col2Im:
    """One thread per element of x, which gathers it from the columns. Immutable."""

    name: str = "gather"

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return scatter_units()

    def offer(self, problem: Col2ImProblem, figures: DeviceFigures) -> Offer:
        """What it takes; it computes everything that is legal."""
        seconds = columns_seconds(problem.x.nbytes, problem.columns.nbytes, figures)
        return Offer(seconds, partial(scatter, problem.x, Columns.of(problem), figures))


IM2COL = (Im2Col(),)
COL2IM = (Col2Im(),)
