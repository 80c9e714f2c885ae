"""Pooling forward over two spatial dimensions where channels are innermost: vectors of channels, strips of a row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate, record, small_divisor, struct
from dnncore.cuda.pooling.problem import MODES, PoolingProblem, mode_of, operands_of, window_places, windows_of
from dnncore.cuda.pooling.vectors import ANYWHERE, VECTOR_BYTES, steps, vector_width, where_aligned, why_no_vectors
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = ["ChannelPooling"]

_THREADS = 128
_STRIPS = {(3, 1): 4, (3, 2): 2, (2, 2): 2}
"""Outputs of a strip by window and stride, both the same along rows and columns; 1 for all others."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_MAX_ITEMS = 2**31 - _THREADS

_OF_MEMORY_RATE, _OF_MEMORY_RATE_OVERLAPPING = 0.6, 0.55
"""Of the memory rate, the latter for windows that overlap in fp32 [measured on an H200, 64 x 64 x 112 x 112: fp32 averages and
maxima of 3 x 3 with stride 2 take 108 and 93 us, 80 and 79 by `planar`; of 2 x 2 64 and 60, 78 and 74 by `planar`; fp16 maxima
of 2 x 2 reach 0.97]."""

_OF_MEMORY_RATE_WITH_PLACES = 0.47
"""Of windows that overlap, in 16 bits, where the places of maxima are kept [measured there: GoogLeNet's at batch 128, fp16]."""

_WINDOW_PLACE = 9.5
"""Multiply-adds in whose time a place of a window is looked at [measured there: GoogLeNet in fp16, 256 images]."""

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("output", ADDRESS),
    ("indices", ADDRESS),
    ("x_image", "<i8"),
    ("output_image", "<i8"),
    ("indices_image", "<i8"),
    ("x_step", "<i4", 2),
    ("output_step", "<i4", 2),
    ("indices_step", "<i4", 2),
    ("x_extent", "<i4", 2),
    ("y_extent", "<i4", 2),
    ("window", "<i4", 2),
    ("stride", "<i4", 2),
    ("before", "<i4", 2),
    ("counted_low", "<i4", 2),
    ("counted_high", "<i4", 2),
    ("vectors", SMALL_DIVISOR),
    ("strips", SMALL_DIVISOR),
    ("rows", SMALL_DIVISOR),
    ("items", "<i4"),
    ("propagates_nan", "<i4"),
)


@dataclass(frozen=True, slots=True)
class ChannelPooling:
    """Forward. Immutable."""

    name: str = "channels"

    def offer(self, problem: PoolingProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        anywhere = ANYWHERE.offer(problem, figures)
        if isinstance(anywhere, str):
            return anywhere
        pooling, rate = problem.pooling, _OF_MEMORY_RATE
        if any(window > stride for window, stride in zip(pooling.window, pooling.stride, strict=True)):
            if problem.inputs[0].dtype is DType.FLOAT32:
                rate = _OF_MEMORY_RATE_OVERLAPPING
            elif mode_of(problem) == "indices":
                rate = _OF_MEMORY_RATE_WITH_PLACES
        seconds = max(
            operand_bytes(problem) / (figures.bytes_per_second * rate),
            window_places(problem) * _WINDOW_PLACE / figures.products_per_second(Maths.FP32),
        )
        return Offer(figures.launch_seconds + seconds, partial(_prepare, problem, anywhere, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each mode and dtype; where addresses are not aligned, those of planar pooling."""
        return (*(_unit(mode, dtype) for dtype in _DTYPES for mode in MODES), *ANYWHERE.units())


def _why_not(problem: PoolingProblem) -> str | None:
    """None where the kernels can solve it, else the reason why not."""
    if (
        reason := why_no_vectors(problem, (*problem.inputs, *problem.outputs[::-1]), _DTYPES, tuple(MODES))
    ) is not None:
        return reason
    y = problem.outputs[0]
    items = y.size // vector_width(y.dtype)
    return f"{items} vectors; at most {_MAX_ITEMS}" if items > _MAX_ITEMS else None


def _prepare(problem: PoolingProblem, anywhere: Offer, figures: DeviceFigures) -> Calls:
    x, y, pooling = problem.inputs[0], problem.outputs[0], problem.pooling
    (rows, columns), width = y.shape[2:], vector_width(x.dtype)
    square = pooling.window[0] == pooling.window[1] and pooling.stride[0] == pooling.stride[1]
    strip = _STRIPS.get((pooling.window[0], pooling.stride[0]), 1) if square else 1
    vectors, strips = y.shape[1] // width, -(-columns // strip)
    items = y.shape[0] * rows * strips * vectors
    params = record(
        _PARAMS,
        x_image=x.strides[0],
        output_image=y.strides[0],
        x_step=steps(x),
        output_step=steps(y),
        **windows_of(problem),
        window=pooling.window,
        stride=pooling.stride,
        vectors=small_divisor(vectors),
        strips=small_divisor(strips),
        rows=small_divisor(rows),
        items=items,
        propagates_nan=pooling.propagate_nan,
    )
    for indices in problem.outputs[1:]:
        params["indices_image"] = indices.strides[0]
        params["indices_step"] = steps(indices)
    unit, fields = _unit(mode_of(problem), x.dtype), operands_of(problem).fields
    blocks = -(-items // _THREADS)
    vectorized = kernel_call(unit, blocks, _THREADS, params, in_order(*fields), starts_early=figures.starts_early)
    return where_aligned(vectorized, anywhere.prepare, dict.fromkeys(range(len(fields)), VECTOR_BYTES))


def _unit(mode: str, dtype: DType) -> Unit:
    return generate(
        header="dnncore/pooling_channels.cuh",
        entry=f"pooling_forward_channels_{mode}_{c_type(dtype)}",
        function=f"pooling_channels<{c_type(dtype)}, PoolingMode::{MODES[mode]}>",
        struct_name="ChannelPoolingParams",
        dtype=_PARAMS,
        threads=_THREADS,
        starts_early=True,
    )
