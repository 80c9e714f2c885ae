"""Planes of few channels in float32 to pixels in 16 bits: how an image comes into a net that computes channels-last."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, DIVISOR, TENSOR_VIEW, c_type, divisor, generate, record, struct, view
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.transpose import Matrices
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import AddProblem

__all__ = ["Interleave"]

_THREADS = 256
_PIXELS = 1024
"""Of a tile; kInterleavePixels in interleave.cuh."""
_MOST_CHANNELS = 8
"""A tile of more would take more shared memory than a block may have on every device."""

_NARROW = (DType.FLOAT16, DType.BFLOAT16)

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("output", ADDRESS),
    ("channels", "<i8"),
    ("pixels", "<i8"),
    ("x_channel", "<i8"),
    ("tiles", "<i8"),
    ("tiles_a_image", DIVISOR),
    ("x_batch", TENSOR_VIEW),
    ("output_batch", TENSOR_VIEW),
)

_OF_MEMORY_RATE = 1.0
"""Of the memory rate [measured on an H200: 64 images of 3 x 224 x 224, to fp16]."""


@dataclass(frozen=True, slots=True)
class Interleave:
    """c = alpha * a + beta * c, from planes in float32 to dense pixels of few channels in 16 bits. Immutable."""

    name: str = "interleave"

    def offer(self, problem: AddProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        if problem.a.dtype is not DType.FLOAT32 or problem.c.dtype not in _NARROW:
            return f"a is {problem.a.dtype.value}, c {problem.c.dtype.value}; it is for float32 to 16 bits"
        matrices = Matrices.of(problem)
        if matrices is None:
            return "the tensors do not differ in which dimension is contiguous"
        if matrices.rows > _MOST_CHANNELS:
            return f"c has {matrices.rows} channels; at most {_MOST_CHANNELS}"
        if matrices.c_column != matrices.rows:
            return f"pixels of {matrices.rows} channels are {matrices.c_column} elements apart"
        seconds = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return Offer(figures.launch_seconds + seconds, partial(_prepare, problem.c.dtype, figures, matrices))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype of c."""
        return tuple(map(_unit, _NARROW))


def _prepare(dtype: DType, figures: DeviceFigures, matrices: Matrices) -> Calls:
    extents, a_strides, c_strides = matrices.batch
    of_image = -(-matrices.columns // _PIXELS)
    tiles = math.prod(extents) * of_image
    params = record(
        _PARAMS,
        channels=matrices.rows,
        pixels=matrices.columns,
        x_channel=matrices.a_row,
        tiles=tiles,
        tiles_a_image=divisor(of_image),
        x_batch=view(extents, a_strides),
        output_batch=view(extents, c_strides),
    )
    shared = _PIXELS * matrices.rows * DType.FLOAT32.itemsize
    return kernel_call(
        _unit(dtype),
        blocks_for(figures, tiles, 1),
        _THREADS,
        params,
        in_order("x", "output"),
        shared_bytes=shared,
        starts_early=figures.starts_early,
    )


@cache
def _unit(dtype: DType) -> Unit:
    return generate(
        header="dnncore/interleave.cuh",
        entry=f"interleave_{c_type(dtype)}",
        function=f"interleave<{c_type(dtype)}>",
        struct_name="InterleaveParams",
        dtype=_PARAMS,
        threads=_THREADS,
        starts_early=True,
    )
