"""Pooling forward by overlapping windows of 3 x 3, channels innermost, 16-bit: threads walk down the rows of strips of outputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, c_type, generate, record, struct
from dnncore.cuda.pooling.problem import MODES, WINDOW_FIELDS, PoolingProblem, mode_of, windows_of
from dnncore.cuda.pooling.vectors import (
    ANYWHERE,
    MODES_OF_VECTORS,
    VECTOR_BYTES,
    steps,
    vector_width,
    where_aligned,
    why_no_vectors,
)
from dnncore.cuda.pooling.walks import WALK_FIELDS, Walks, resident_threads
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures

__all__ = ["RollingPooling"]

_THREADS = 128
_WINDOW = 3
_COLUMNS = {("max", 1): 4, ("max", 2): 2, ("average", 1): 2, ("average", 2): 2}
"""Of outputs, of a strip, by mode and stride: as many as leave registers for several warps."""

_REGISTERS = {("max", 1): 123, ("max", 2): 76, ("average", 1): 121, ("average", 2): 104}
"""Of a thread, by mode and stride [most of those for sm_90a in the gates' baseline]."""

_MOST_STEPS = 7
"""Of a walk where not all threads have a place at once: while the last ones walk, the device is nearly idle."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16)

_OF_MEMORY_RATE = 0.75
"""Estimated, not measured on a GPU: memory alone should be the limit, for an output takes some 35 instructions with stride 1 and 50
with stride 2, where `channels` takes 380 and 510 and waits for ten loads one by one [in the code for sm_90a, fp16 maxima]."""

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("output", ADDRESS),
    ("x_image", "<i8"),
    ("output_image", "<i8"),
    ("x_step", "<i4", 2),
    ("output_step", "<i4", 2),
    *WINDOW_FIELDS,
    *WALK_FIELDS,
    ("items", "<i4"),
    ("propagates_nan", "<i4"),
)


@dataclass(frozen=True, slots=True)
class RollingPooling:
    """Forward, without indices, windows of 3 x 3 with stride 1 or 2. Immutable."""

    name: str = "rolling"

    def offer(self, problem: PoolingProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        anywhere = ANYWHERE.offer(problem, figures)
        if isinstance(anywhere, str):
            return anywhere
        walks = _walks(problem, figures)
        if (reason := walks.why_not(_THREADS)) is not None:
            return reason
        seconds = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return Offer(figures.launch_seconds + seconds, partial(_prepare, problem, walks, anywhere, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each mode, stride and dtype; where addresses are not aligned, those of planar pooling."""
        kernels = tuple(
            _unit(mode, stride, dtype) for dtype in _DTYPES for mode in MODES_OF_VECTORS for stride in (1, 2)
        )
        return (*kernels, *ANYWHERE.units())


def _walks(problem: PoolingProblem, figures: DeviceFigures) -> Walks:
    x, y = problem.inputs[0], problem.outputs[0]
    kind = mode_of(problem), problem.pooling.stride[0]
    return Walks.of(
        y.shape,
        vector_width(x.dtype),
        columns=_COLUMNS[kind],
        at_once=_rows_of_a_step(problem),
        most=_MOST_STEPS * _rows_of_a_step(problem),
        resident=resident_threads(figures, _THREADS, _REGISTERS[kind]),
    )


def _rows_of_a_step(problem: PoolingProblem) -> int:
    """Rows of outputs: a step takes two of x."""
    return 2 // problem.pooling.stride[0]


def _why_not(problem: PoolingProblem) -> str | None:
    """None where the kernels can solve it, else the reason why not."""
    pooling = problem.pooling
    if (reason := why_no_vectors(problem, (*problem.inputs, *problem.outputs), _DTYPES)) is not None:
        return reason
    if pooling.window != (_WINDOW,) * 2 or pooling.stride not in ((1, 1), (2, 2)):
        return f"windows of {pooling.window} with strides {pooling.stride}; it is for (3, 3) with (1, 1) or (2, 2)"
    return None if problem.inputs[0].size else "x is empty"


def _prepare(problem: PoolingProblem, walks: Walks, anywhere: Offer, figures: DeviceFigures) -> Calls:
    x, y, pooling = problem.inputs[0], problem.outputs[0], problem.pooling
    itemsize = x.dtype.itemsize
    params = record(
        _PARAMS,
        x_image=x.strides[0] * itemsize,
        output_image=y.strides[0] * itemsize,
        x_step=tuple(step * itemsize for step in steps(x)),
        output_step=tuple(step * itemsize for step in steps(y)),
        **windows_of(problem),
        **walks.fields,
        propagates_nan=pooling.propagate_nan,
    )
    unit = _unit(mode_of(problem), pooling.stride[0], x.dtype)
    blocks = -(-walks.items // _THREADS)
    vectorized = kernel_call(unit, blocks, _THREADS, params, in_order("x", "output"), starts_early=figures.starts_early)
    return where_aligned(vectorized, anywhere.prepare, dict.fromkeys((0, 1), VECTOR_BYTES))


def _unit(mode: str, stride: int, dtype: DType) -> Unit:
    element, columns = c_type(dtype), _COLUMNS[mode, stride]
    return generate(
        header="dnncore/pooling_rolling.cuh",
        entry=f"pooling_forward_rolling_{mode}_{element}_stride_{stride}",
        function=f"pooling_rolling<{element}, PoolingMode::{MODES[mode]}, {stride}, {columns}>",
        struct_name="RollingPoolingParams",
        dtype=_PARAMS,
        threads=_THREADS,
        starts_early=True,
    )
