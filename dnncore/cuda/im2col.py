"""Gathering patches into columns, and its adjoint; the columns may have any strides, also those that only the library uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.geometry import GEOMETRY, MAX_SPATIAL, geometry, spatial, taps
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import ADDRESS, BLEND, DIVISOR, FLOATING, c_type, divisor, generate, record, struct
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import Col2ImProblem, Im2ColProblem

__all__ = ["COL2IM", "IM2COL", "Columns", "gather", "gather_units", "scatter", "scatter_units"]

_THREADS = 128
_PACK_BYTES = 16
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
        taps: From one of the filter's taps, as it is stored, to the next; one a spatial dimension.
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


def _unit(function: str, dtype: DType) -> Unit:
    return generate(
        header="dnncore/im2col.cuh",
        entry=f"{function}_{c_type(dtype)}",
        function=f"{function}<{c_type(dtype)}>",
        struct_name="Im2ColParams",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def gather(device: CudaDevice, x: TensorDescriptor, columns: Columns) -> Launch:
    """Launch from x to columns."""
    params = columns.params(x)
    packs = -(-columns.row_length // (_PACK_BYTES // x.dtype.itemsize))
    params["packs"] = divisor(packs)
    params["count"] = math.prod(x.shape[:2]) * math.prod(columns.filter_shape) * packs
    grid = (blocks_for(int(params["count"]), _THREADS), 1, 1)
    return single(device.kernel(_unit("im2col", x.dtype)), grid, (_THREADS, 1, 1), params, ("input",), ("output",))


def scatter(device: CudaDevice, x: TensorDescriptor, columns: Columns) -> Launch:
    """Launch from columns to x."""
    params = columns.params(x)
    params["count"] = x.size
    grid = (blocks_for(x.size, _THREADS), 1, 1)
    return single(device.kernel(_unit("col2im", x.dtype)), grid, (_THREADS, 1, 1), params, ("input",), ("output",))


def gather_units() -> tuple[Unit, ...]:
    """Every unit that `gather` can ask for."""
    return tuple(_unit("im2col", dtype) for dtype in (*FLOATING, DType.INT8))


def scatter_units() -> tuple[Unit, ...]:
    """Every unit that `scatter` can ask for."""
    return tuple(_unit("col2im", dtype) for dtype in FLOATING)


@dataclass(frozen=True, slots=True)
class Im2Col:
    """One thread 16 bytes of a row of columns. Immutable."""

    name: str = "gather"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Im2ColProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 (the Protocol's signature)
        """None: it supports everything that is legal."""
        return None

    def workspace_bytes(self, problem: Im2ColProblem) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return gather_units()

    def prepare(self, problem: Im2ColProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        return gather(device, problem.x, Columns.of(problem))


@dataclass(frozen=True, slots=True)
class Col2Im:
    """One thread an element of x, which gathers it from the columns. Immutable."""

    name: str = "gather"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: Col2ImProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 (the Protocol's signature)
        """None: it supports everything that is legal."""
        return None

    def workspace_bytes(self, problem: Col2ImProblem) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return scatter_units()

    def prepare(self, problem: Col2ImProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        return scatter(device, problem.x, Columns.of(problem))


IM2COL = (Im2Col(),)
COL2IM = (Col2Im(),)
