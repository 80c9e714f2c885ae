"""Gradients of pooling, channels innermost: threads walk down the windows of strips of dx, and keep sums of what these pass on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate_together, record, small_divisor, struct
from dnncore.cuda.pooling.problem import MODES, Geometry, PoolingProblem, mode_of, operands_of
from dnncore.cuda.pooling.vectors import ANYWHERE_BACKWARD, steps, vector_width, where_aligned, why_no_vectors
from dnncore.cuda.pooling.walks import Walks
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures

__all__ = ["RollingGradients"]

_THREADS = 128
_COLUMNS = 2
"""Of dx, of a strip; a multiple of each stride."""

_WINDOWS = ((3, 1), (3, 2), (2, 2))
"""Extents and strides of those that there are kernels for, the same along rows and columns."""

_MODES = ("indices", "average")
"""Of `problem.MODES`: maxima without indices would have to be looked for again."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)

_READ_AND_WRITTEN = ("dy", "indices", "output")

_RESIDENT = 512
"""Threads that a multiprocessor has registers for, in whole blocks [by the registers of sm_90a, which the gates' baseline has]."""

_MOST_STEPS = 14
"""Of a walk where not all threads have a place at once. Each walk looks at up to two rows of windows that the one above it has
looked at, too."""

_OF_MEMORY_RATE = {2: 0.72, 4: 0.87}
"""By the bytes of an element [measured on an H200: GoogLeNet's at batch 128, windows of 3 x 3 from indices]."""

_PARAMS = struct(
    *BLEND,
    ("dy", ADDRESS),
    ("indices", ADDRESS),
    ("output", ADDRESS),
    ("dy_image", "<i8"),
    ("indices_image", "<i8"),
    ("output_image", "<i8"),
    ("dy_step", "<i4", 2),
    ("indices_step", "<i4", 2),
    ("output_step", "<i4", 2),
    ("x_extent", "<i4", 2),
    ("y_extent", "<i4", 2),
    ("before", "<i4", 2),
    ("counted_low", "<i4", 2),
    ("counted_high", "<i4", 2),
    ("vectors", SMALL_DIVISOR),
    ("strips", SMALL_DIVISOR),
    ("groups", SMALL_DIVISOR),
    ("walks", SMALL_DIVISOR),
    ("walk", "<i4"),
    ("steps", "<i4"),
    ("items", "<i4"),
)


@dataclass(frozen=True, slots=True)
class RollingGradients:
    """Backward from indices, or of averages. Immutable."""

    name: str = "rolling"

    def offer(self, problem: PoolingProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        if (reason := _why_not(problem)) is not None:
            return reason
        anywhere = ANYWHERE_BACKWARD.offer(problem, figures)
        if isinstance(anywhere, str):
            return anywhere
        walks = _walks(problem, figures)
        if (reason := walks.why_not(_THREADS)) is not None:
            return reason
        moved = sum(tensor.size * tensor.dtype.itemsize for tensor in _operands(problem).values())
        seconds = moved / (figures.bytes_per_second * _OF_MEMORY_RATE[problem.outputs[0].dtype.itemsize])
        return Offer(figures.launch_seconds + seconds, partial(_prepare, problem, walks, anywhere, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each mode, window and dtype; where addresses are not aligned, those of planar pooling."""
        kernels = tuple(unit for dtype in _DTYPES for window in _WINDOWS for unit in _units(dtype, window).values())
        return (*kernels, *ANYWHERE_BACKWARD.units())


def _operands(problem: PoolingProblem) -> dict[str, TensorDescriptor]:
    """What is read and written, by the fields of the parameters."""
    return {
        name: tensor
        for name, tensor in zip(operands_of(problem).fields, (*problem.inputs, *problem.outputs), strict=True)
        if name in _READ_AND_WRITTEN
    }


def _why_not(problem: PoolingProblem) -> str | None:
    """None where the kernels can solve it, else the reason why not."""
    pooling = problem.pooling
    if (reason := why_no_vectors(problem, [*_operands(problem).values()], _DTYPES, _MODES)) is not None:
        return reason
    if _window(problem) not in _WINDOWS or len({*pooling.window}) > 1 or len({*pooling.stride}) > 1:
        known = ", ".join(f"{extent} x {extent} with stride {stride}" for extent, stride in _WINDOWS)
        return f"windows of {pooling.window} with strides {pooling.stride}; it is for {known}"
    return None


def _window(problem: PoolingProblem) -> tuple[int, int]:
    return problem.pooling.window[0], problem.pooling.stride[0]


def _walks(problem: PoolingProblem, figures: DeviceFigures) -> Walks:
    images, channels, rows, columns = problem.outputs[0].shape
    outside = [
        before % stride for (before, _), stride in zip(problem.pooling.padding, problem.pooling.stride, strict=True)
    ]
    return Walks.of(
        (images, channels, -(-(rows + outside[0]) // problem.pooling.stride[0]), columns + outside[1]),
        vector_width(problem.outputs[0].dtype),
        columns=_COLUMNS,
        at_once=1,
        most=_MOST_STEPS,
        resident=figures.multiprocessors * _RESIDENT,
    )


def _prepare(problem: PoolingProblem, walks: Walks, anywhere: Offer, figures: DeviceFigures) -> Calls:
    dx, pooling, geometry = problem.outputs[0], problem.pooling, Geometry.of(problem)
    params = record(
        _PARAMS,
        x_extent=geometry.x,
        y_extent=geometry.y,
        before=tuple(before for before, _ in pooling.padding),
        counted_low=geometry.counted_low,
        counted_high=geometry.counted_high,
        vectors=small_divisor(walks.vectors),
        strips=small_divisor(walks.strips),
        groups=small_divisor(walks.groups),
        walks=small_divisor(walks.walks),
        walk=walks.walk,
        steps=-(-(dx.shape[2] + pooling.padding[0][0] % pooling.stride[0]) // pooling.stride[0]),
        items=walks.items,
    )
    for name, tensor in _operands(problem).items():
        params[f"{name}_image"] = tensor.strides[0] * tensor.dtype.itemsize
        params[f"{name}_step"] = tuple(step * tensor.dtype.itemsize for step in steps(tensor))
    unit = _units(dx.dtype, _window(problem))[mode_of(problem)]
    blocks = -(-walks.items // _THREADS)
    fields = [name if name in _READ_AND_WRITTEN else None for name in operands_of(problem).fields]
    vectorized = kernel_call(unit, blocks, _THREADS, params, in_order(*fields), starts_early=figures.starts_early)
    aligned = [operand for operand, name in enumerate(fields) if name is not None]
    return where_aligned(vectorized, anywhere.prepare(), aligned)


def _units(dtype: DType, window: tuple[int, int]) -> dict[str, Unit]:
    """By mode; those of a dtype and a window share a source."""
    extent, stride = window
    element = c_type(dtype)
    entries = {mode: f"pooling_backward_rolling_{mode}_{element}_{extent}x{extent}_stride_{stride}" for mode in _MODES}
    functions = {
        entry: f"pooling_rolling_gradients<{element}, PoolingMode::{MODES[mode]}, {extent}, {stride}, {_COLUMNS}>"
        for mode, entry in entries.items()
    }
    units = generate_together(
        "dnncore/pooling_rolling_gradients.cuh",
        functions,
        "RollingGradientsParams",
        _PARAMS,
        _THREADS,
        starts_early=True,
    )
    return {mode: units[entry] for mode, entry in entries.items()}
