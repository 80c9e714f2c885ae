"""Pooling forward by windows of 2 x 2 and 3 x 3 over planes: threads walk down the rows of strips of outputs.

Where rows of x are whole vectors and windows are two columns apart, a strip is what a vector of x gives (`vector_planes`).
Elsewhere it is two outputs, whose places are read one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate_together, record, small_divisor, struct
from dnncore.cuda.pooling.problem import (
    MODES,
    WALKED_WINDOWS,
    WINDOW_FIELDS,
    PoolingProblem,
    mode_of,
    operands_of,
    why_not_walked,
    windows_of,
)
from dnncore.cuda.pooling.vectors import (
    ANYWHERE,
    VECTOR_BYTES,
    steps,
    vector_width,
    where_aligned,
    whole_strips,
    why_no_planes,
)
from dnncore.cuda.pooling.walks import Walks, resident_threads
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures

__all__ = ["RollingPlanes"]

_THREADS = 128
_COLUMNS = 2
"""Of outputs, of a strip whose places are read one by one."""

_STRIDE = 2
_VECTOR_WINDOWS = ((2, 0), (3, 0), (3, 1))
"""Strips that are vectors of x: columns of a window and of padding in front."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)

_REGISTERS, _REGISTERS_BY_VECTORS = 59, 66
"""Of a thread [most of those for sm_90a in the gates' baseline]; the latter of strips that are vectors."""

_MOST_ROWS = 14
"""Of a walk where not all threads have a place at once. Each walk loads up to two rows that the one above it has loaded, too."""

_OF_MEMORY_RATE = {2: 0.5, 4: 0.7}
"""By the bytes of an element [measured on an H200: the poolings of ResNet-50, VGG-16 and GoogLeNet at batch 64]."""

_OF_MEMORY_RATE_BY_VECTORS = {2: 0.86, 4: 0.89}
"""Likewise, of strips that are vectors [measured on an H200, 64 x 64 x 112 x 112: 0.81 to 0.92, and 0.84 to 0.91]."""

_ALONE = 0.75
"""Of that, where outputs are stored one at a time [measured likewise: AlexNet's]."""

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("output", ADDRESS),
    ("indices", ADDRESS),
    ("x_plane", "<i8", 2),
    ("output_plane", "<i8", 2),
    ("indices_plane", "<i8", 2),
    ("x_row", "<i4"),
    ("output_row", "<i4"),
    ("indices_row", "<i4"),
    *WINDOW_FIELDS,
    ("strips", SMALL_DIVISOR),
    ("channels", SMALL_DIVISOR),
    ("walks", SMALL_DIVISOR),
    ("walk", "<i4"),
    ("items", "<i4"),
    ("in_pairs", "<i4"),
    ("propagates_nan", "<i4"),
)


@dataclass(frozen=True, slots=True)
class RollingPlanes:
    """Forward, channels outermost. Immutable."""

    name: str = "rolling_planes"

    def offer(self, problem: PoolingProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        tensors = (*problem.inputs, *problem.outputs[::-1])
        if (reason := why_not_walked(problem) or why_no_planes(problem, tensors, _DTYPES, tuple(MODES))) is not None:
            return reason
        anywhere = ANYWHERE.offer(problem, figures)
        if isinstance(anywhere, str):
            return anywhere
        walks = _walks(problem, figures)
        if (reason := walks.why_not(_THREADS)) is not None:
            return reason
        itemsize = problem.outputs[0].dtype.itemsize
        if _in_vectors(problem):
            rate = _OF_MEMORY_RATE_BY_VECTORS[itemsize]
        else:
            rate = _OF_MEMORY_RATE[itemsize] * (1.0 if _in_pairs(problem) else _ALONE)
        seconds = operand_bytes(problem) / (figures.bytes_per_second * rate)
        return Offer(figures.launch_seconds + seconds, partial(_prepare, problem, walks, anywhere, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each mode, window and dtype; where addresses are not aligned, those of planar pooling."""
        kernels = (unit for dtype in _DTYPES for window in WALKED_WINDOWS for unit in _units(dtype, window).values())
        by_vectors = (
            unit
            for dtype in _DTYPES
            for window, before in _VECTOR_WINDOWS
            for unit in _vector_units(dtype, window, before).values()
        )
        return (*kernels, *by_vectors, *ANYWHERE.units())


def _strip(problem: PoolingProblem) -> int:
    """Columns of outputs of a strip."""
    return vector_width(problem.outputs[0].dtype) // _STRIDE if _in_vectors(problem) else _COLUMNS


def _in_vectors(problem: PoolingProblem) -> bool:
    """Whether strips are what whole vectors of x give."""
    (x,), pooling = problem.inputs, problem.pooling
    width = vector_width(x.dtype)
    return (
        (pooling.window[1], pooling.padding[1][0]) in _VECTOR_WINDOWS
        and pooling.stride[1] == _STRIDE
        and x.shape[3] == _STRIDE * problem.outputs[0].shape[3]
        and whole_strips(x, width)
        and all(whole_strips(tensor, width // _STRIDE) for tensor in problem.outputs)
    )


def _walks(problem: PoolingProblem, figures: DeviceFigures) -> Walks:
    return Walks.of(
        problem.outputs[0].shape,
        None,
        columns=_strip(problem),
        at_once=1,
        most=_MOST_ROWS,
        resident=resident_threads(figures, _THREADS, _REGISTERS_BY_VECTORS if _in_vectors(problem) else _REGISTERS),
    )


def _in_pairs(problem: PoolingProblem) -> bool:
    """Whether a strip's outputs can be stored at once."""
    return all(whole_strips(tensor, _COLUMNS) for tensor in problem.outputs)


def _prepare(problem: PoolingProblem, walks: Walks, anywhere: Offer, figures: DeviceFigures) -> Calls:
    pooling, fields = problem.pooling, operands_of(problem).fields
    in_vectors, in_pairs = _in_vectors(problem), _in_pairs(problem)
    params = record(
        _PARAMS,
        **windows_of(problem),
        strips=small_divisor(walks.strips),
        channels=small_divisor(walks.groups),
        walks=small_divisor(walks.walks),
        walk=walks.walk,
        items=walks.items,
        in_pairs=in_pairs,
        propagates_nan=pooling.propagate_nan,
    )
    for name, tensor in zip(fields, (*problem.inputs, *problem.outputs), strict=True):
        params[f"{name}_plane"] = tensor.strides[:2]
        params[f"{name}_row"] = steps(tensor)[0]
    dtype, window = problem.outputs[0].dtype, pooling.window[0]
    before, stride = pooling.padding[1][0], pooling.stride[0]
    units = _vector_units(dtype, window, before) if in_vectors else _units(dtype, (window, stride))
    unit, blocks = units[mode_of(problem)], -(-walks.items // _THREADS)
    calls = kernel_call(unit, blocks, _THREADS, params, in_order(*fields), starts_early=figures.starts_early)
    if not (in_vectors or in_pairs):
        return calls
    aligned = {operand: _strip(problem) * tensor.dtype.itemsize for operand, tensor in enumerate(problem.outputs, 1)}
    return where_aligned(calls, anywhere.prepare, aligned | ({0: VECTOR_BYTES} if in_vectors else {}))


def _units(dtype: DType, window: tuple[int, int]) -> dict[str, Unit]:
    """By mode, of strips whose places are read one by one; a window is its extent and its stride."""
    extent, stride = window
    return _by_mode("rolling_planes", dtype, f"{extent}x{extent}_stride_{stride}", f"{extent}, {stride}, {_COLUMNS}")


def _vector_units(dtype: DType, window: int, before: int) -> dict[str, Unit]:
    """By mode, of strips that are vectors of x."""
    return _by_mode("vector_planes", dtype, f"{window}x{window}_padding_{before}", f"{window}, {before}")


def _by_mode(kernel: str, dtype: DType, shape: str, arguments: str) -> dict[str, Unit]:
    """The units of a kernel for a dtype and a window, which share a source."""
    element = c_type(dtype)
    entries = {mode: f"pooling_forward_{kernel}_{mode}_{element}_{shape}" for mode in MODES}
    functions = {
        entry: f"pooling_{kernel}<{element}, PoolingMode::{MODES[mode]}, {arguments}>"
        for mode, entry in entries.items()
    }
    header = f"dnncore/pooling_{kernel}.cuh"
    units = generate_together(header, functions, "RollingPlanesParams", _PARAMS, _THREADS, starts_early=True)
    return {mode: units[entry] for mode, entry in entries.items()}
