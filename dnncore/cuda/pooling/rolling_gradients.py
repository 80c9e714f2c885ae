"""Gradients of pooling: threads walk down the windows of strips of dx, and keep sums of what these pass on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, c_type, generate_together, record, struct
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
    ANYWHERE_BACKWARD,
    VECTOR_BYTES,
    steps,
    vector_width,
    where_aligned,
    whole_strips,
    why_no_planes,
    why_no_vectors,
)
from dnncore.cuda.pooling.walks import WALK_FIELDS, Walks, resident_threads
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures

__all__ = ["RollingGradients"]

_THREADS = 128
_COLUMNS, _COLUMNS_OF_MAXIMA = 2, 4
"""Of dx, of a strip; a multiple of each stride. The latter of planes where maxima are found again: neighbouring strips find those
of the windows between them twice."""

_STRIDE_OF_VECTORS = 2
_WINDOWS_OF_VECTORS = ((2, 0), (3, 0), (3, 1))
"""Of planes whose strips are vectors of dx: columns of a window and of padding in front."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)

_WALKED = ("vectors", "planes", "plane_vectors")
"""What there are kernels for: vectors of channels, planes, and planes whose strips are vectors of dx."""

_READ_AND_WRITTEN = {
    "max": ("dy", "x", "output"),
    "indices": ("dy", "indices", "output"),
    "average": ("dy", "output"),
}
"""By mode, of the fields of the parameters."""

_WIDTH_OF_MAXIMA = 4
"""Channels of a vector where maxima are found again; kVector in pooling_rolling_gradients.cuh."""

_REGISTERS = {"vectors": 110, "planes": 56, "plane_vectors": 72}
"""Of a thread, by what is walked, the last of planes whose strips are vectors of dx [most of those for sm_90a in the gates'
baseline]."""

_REGISTERS_OF_MAXIMA = {
    ("vectors", 3, 1): 200,
    ("vectors", 3, 2): 137,
    ("vectors", 2, 2): 72,
    ("planes", 3, 1): 121,
    ("planes", 3, 2): 94,
    ("planes", 2, 2): 72,
}
"""The same where maxima are found again, by what is walked, extent and stride."""

_MOST_STEPS = 14
"""Of a walk where not all threads have a place at once. Each walk looks at up to two rows of windows that the one above it has
looked at, too."""

_OF_MEMORY_RATE = {2: 0.72, 4: 0.87}
"""By the bytes of an element [measured on an H200: GoogLeNet's at batch 128, windows of 3 x 3 from indices, channels innermost]."""

_OF_MEMORY_RATE_OF_MAXIMA = {2: 0.6, 4: 0.75}
"""The same where maxima are found again [measured on an H200, 64 x 64 x 112 x 112: 0.53 to 0.87, and 0.79 to 0.93]."""

_OF_MEMORY_RATE_OF_PLANES, _ALONE = {2: 0.6, 4: 0.75}, 0.5
"""The same of planes, and of that, where elements of dx are stored one at a time [measured likewise: ResNet-50's, VGG-16's and
GoogLeNet's at batch 64, and AlexNet's]."""

_OF_MEMORY_RATE_OF_PLANE_VECTORS = {2: 0.75, 4: 0.74}
"""The same of planes whose strips are vectors of dx [measured on an H200, 64 x 64 x 112 x 112: 0.71 to 0.80, and 0.71 to 0.76]."""

_PARAMS = struct(
    *BLEND,
    ("dy", ADDRESS),
    ("indices", ADDRESS),
    ("x", ADDRESS),
    ("output", ADDRESS),
    *((f"{name}_image", "<i8") for name in ("dy", "indices", "x", "output")),
    *((f"{name}_channel", "<i8") for name in ("dy", "indices", "x", "output")),
    *((f"{name}_step", "<i4", 2) for name in ("dy", "indices", "x", "output")),
    *WINDOW_FIELDS,
    *WALK_FIELDS,
    ("steps", "<i4"),
    ("items", "<i4"),
    ("at_once", "<i4"),
    ("propagates_nan", "<i4"),
)


@dataclass(frozen=True, slots=True)
class RollingGradients:
    """Backward. Immutable."""

    name: str = "rolling"

    def offer(self, problem: PoolingProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        tensors = [*_operands(problem).values()]
        if (reason := why_not_walked(problem)) is not None:
            return reason
        no_vectors = why_no_vectors(problem, tensors, _DTYPES, tuple(MODES))
        of_planes = no_vectors is not None
        if no_vectors is not None and (no_planes := why_no_planes(problem, tensors, _DTYPES, tuple(MODES))) is not None:
            return no_vectors if no_planes == no_vectors else f"{no_vectors}, and {no_planes}"
        anywhere = ANYWHERE_BACKWARD.offer(problem, figures)
        if isinstance(anywhere, str):
            return anywhere
        walks = _walks(problem, figures, of_planes=of_planes)
        if (reason := walks.why_not(_THREADS)) is not None:
            return reason
        moved = sum(tensor.size * tensor.dtype.itemsize for tensor in tensors)
        dx = problem.outputs[0]
        rates = _OF_MEMORY_RATE_OF_PLANES if of_planes else _OF_MEMORY_RATE
        if of_planes and _in_vectors(problem):
            rates = _OF_MEMORY_RATE_OF_PLANE_VECTORS
        rate = (_OF_MEMORY_RATE_OF_MAXIMA if mode_of(problem) == "max" else rates)[dx.dtype.itemsize]
        if of_planes and not whole_strips(dx, _columns(problem, of_planes=of_planes)):
            rate *= _ALONE
        seconds = moved / (figures.bytes_per_second * rate)
        prepare = partial(_prepare, problem, walks, anywhere, figures, of_planes=of_planes)
        return Offer(figures.launch_seconds + seconds, prepare)

    def units(self) -> tuple[Unit, ...]:
        """Two for each mode, window and dtype: for vectors of channels and for planes; more for planes whose strips are vectors;
        where addresses are not aligned, those of planar pooling.
        """
        kernels = tuple(
            unit
            for dtype in _DTYPES
            for window in WALKED_WINDOWS
            for what in _WALKED
            for unit in _units(dtype, window, what).values()
        )
        return (*kernels, *ANYWHERE_BACKWARD.units())


def _operands(problem: PoolingProblem) -> dict[str, TensorDescriptor]:
    """What is read and written, by the fields of the parameters."""
    return {
        name: tensor
        for name, tensor in zip(operands_of(problem).fields, (*problem.inputs, *problem.outputs), strict=True)
        if name in _READ_AND_WRITTEN[mode_of(problem)]
    }


def _columns(problem: PoolingProblem, *, of_planes: bool) -> int:
    dtype, mode = problem.outputs[0].dtype, mode_of(problem)
    return _columns_of(dtype, mode, _what(problem, of_planes=of_planes))


def _columns_of(dtype: DType, mode: str, what: str) -> int:
    if what == "plane_vectors":
        return vector_width(dtype)
    return _COLUMNS_OF_MAXIMA if what == "planes" and mode == "max" else _COLUMNS


def _what(problem: PoolingProblem, *, of_planes: bool) -> str:
    """Which of _WALKED the kernel is for."""
    if not of_planes:
        return "vectors"
    return "plane_vectors" if _in_vectors(problem) else "planes"


def _in_vectors(problem: PoolingProblem) -> bool:
    """Of planes, whether strips are whole vectors of dx."""
    dx, pooling = problem.outputs[0], problem.pooling
    width = vector_width(dx.dtype)
    passed_on = [tensor for name, tensor in _operands(problem).items() if name in ("dy", "indices")]
    return (
        mode_of(problem) != "max"
        and (pooling.window[1], pooling.padding[1][0]) in _WINDOWS_OF_VECTORS
        and pooling.stride[1] == _STRIDE_OF_VECTORS
        and dx.shape[3] == _STRIDE_OF_VECTORS * passed_on[0].shape[3]
        and whole_strips(dx, width)
        and all(whole_strips(tensor, width // _STRIDE_OF_VECTORS) for tensor in passed_on)
    )


def _width(problem: PoolingProblem) -> int:
    """Channels of a vector."""
    return _WIDTH_OF_MAXIMA if mode_of(problem) == "max" else vector_width(problem.outputs[0].dtype)


def _window(problem: PoolingProblem) -> tuple[int, int]:
    return problem.pooling.window[0], problem.pooling.stride[0]


def _walks(problem: PoolingProblem, figures: DeviceFigures, *, of_planes: bool) -> Walks:
    (images, channels, _, columns), pooling = problem.outputs[0].shape, problem.pooling
    outside = 0 if of_planes else pooling.padding[1][0] % pooling.stride[1]
    walked = "planes" if of_planes else "vectors"
    if of_planes and _in_vectors(problem):
        registers = _REGISTERS["plane_vectors"]
    elif mode_of(problem) == "max":
        registers = _REGISTERS_OF_MAXIMA[walked, *_window(problem)]
    else:
        registers = _REGISTERS[walked]
    return Walks.of(
        (images, channels, _steps(problem), columns + outside),
        None if of_planes else _width(problem),
        columns=_columns(problem, of_planes=of_planes),
        at_once=1,
        most=_MOST_STEPS,
        resident=resident_threads(figures, _THREADS, registers),
    )


def _steps(problem: PoolingProblem) -> int:
    """Of an image: each completes as many rows of dx as windows are apart, the first one perhaps some that lie outside."""
    stride = problem.pooling.stride[0]
    return -(-(problem.outputs[0].shape[2] + problem.pooling.padding[0][0] % stride) // stride)


def _prepare(
    problem: PoolingProblem, walks: Walks, anywhere: Offer, figures: DeviceFigures, *, of_planes: bool
) -> Calls:
    dx, columns = problem.outputs[0], _columns(problem, of_planes=of_planes)
    at_once = of_planes and whole_strips(dx, columns)
    params = record(
        _PARAMS,
        **windows_of(problem),
        **walks.fields,
        steps=_steps(problem),
        at_once=at_once,
        propagates_nan=problem.pooling.propagate_nan,
    )
    for name, tensor in _operands(problem).items():
        itemsize = tensor.dtype.itemsize
        params[f"{name}_image"] = tensor.strides[0] * itemsize
        params[f"{name}_channel"] = (tensor.strides[1] if of_planes else _width(problem)) * itemsize
        params[f"{name}_step"] = tuple(step * itemsize for step in steps(tensor))
    unit = _units(dx.dtype, _window(problem), _what(problem, of_planes=of_planes))[mode_of(problem)]
    blocks = -(-walks.items // _THREADS)
    used = _READ_AND_WRITTEN[mode_of(problem)]
    fields = [name if name in used else None for name in operands_of(problem).fields]
    calls = kernel_call(unit, blocks, _THREADS, params, in_order(*fields), starts_early=figures.starts_early)
    if not of_planes:
        vectors = {operand: VECTOR_BYTES for operand, name in enumerate(fields) if name is not None}
        return where_aligned(calls, anywhere.prepare, vectors)
    if of_planes and _in_vectors(problem):
        aligned = {
            operand: tensor.dtype.itemsize * (columns if tensor is dx else columns // _STRIDE_OF_VECTORS)
            for operand, tensor in enumerate((*problem.inputs, dx))
            if fields[operand] is not None
        }
        return where_aligned(calls, anywhere.prepare, aligned)
    if at_once:
        return where_aligned(calls, anywhere.prepare, {len(fields) - 1: columns * dx.dtype.itemsize})
    return calls


def _units(dtype: DType, window: tuple[int, int], what: str) -> dict[str, Unit]:
    """By mode, of one of _WALKED; those of a dtype and a window share a source."""
    (extent, stride), element = window, c_type(dtype)
    modes = [mode for mode in MODES if what != "plane_vectors" or (mode != "max" and stride == _STRIDE_OF_VECTORS)]
    entries = {
        mode: f"pooling_backward_rolling_{mode}_{element}_{what}_{extent}x{extent}_stride_{stride}" for mode in modes
    }
    if not entries:
        return {}
    functions = {entry: _function(dtype, mode, window, what) for mode, entry in entries.items()}
    units = generate_together(
        "dnncore/pooling_rolling_gradients.cuh",
        functions,
        "RollingGradientsParams",
        _PARAMS,
        _THREADS,
        starts_early=True,
    )
    return {mode: units[entry] for mode, entry in entries.items()}


def _function(dtype: DType, mode: str, window: tuple[int, int], what: str) -> str:
    (extent, stride), columns = window, _columns_of(dtype, mode, what)
    kind = f"{c_type(dtype)}, PoolingMode::{MODES[mode]}, {'false' if what == 'vectors' else 'true'}"
    return f"pooling_rolling_gradients<{kind}, {extent}, {stride}, {columns}>"
