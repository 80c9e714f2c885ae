"""Batch normalisation with given statistics, of planes that lie one behind the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, FieldPath, Place, WhereAligned, kernel_call
from dnncore.cuda.normalization.frame import PACK_BYTES
from dnncore.cuda.normalization.statistics import Inference
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate_together, record, small_divisor, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import BatchNormMode
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import BatchNormInferenceProblem

__all__ = ["GivenPlanes"]

_THREADS, _VECTORS = 128, 4
"""Of a block, and of a thread; kPlaneThreads and kPlaneVectors in given_planes.cuh."""

_OF_MEMORY_RATE = {2: 0.65, 4: 0.8}
"""By the bytes of an element. Assumed, not measured on a GPU: a little less than the kernels for all layouts reach (pace.py)."""

_OF_A_LAUNCH = 0.75
"""What one takes of that of kernels for all layouts, whose loads are under way later. Assumed, not measured on a GPU."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_PARAMETERS = ("scale", "bias", "mean", "variance")
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("y", ADDRESS),
    ("parameters", ADDRESS, len(_PARAMETERS)),
    ("epsilon", "<f8"),
    ("vectors", "<i8"),
    ("plane", SMALL_DIVISOR),
    ("channels", SMALL_DIVISOR),
    ("narrow", "<i4"),
)


@dataclass(frozen=True, slots=True)
class GivenPlanes:
    """y = scale (x - mean) / sqrt(variance + epsilon) + bias, one pair of numbers for each plane. Immutable."""

    name: str = "given_planes"

    def offer(self, problem: BatchNormInferenceProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        itemsize = problem.x.dtype.itemsize
        seconds = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE[itemsize])
        prepare = partial(_prepare, problem, figures)
        return Offer(figures.launch_seconds * _OF_A_LAUNCH + seconds, prepare)

    def units(self) -> tuple[Unit, ...]:
        """Its own, and those for addresses that are not aligned."""
        own = (unit for dtype in _DTYPES for unit in _units(dtype).values())
        return (*own, *Inference().units())


def _why_not(problem: BatchNormInferenceProblem) -> str | None:
    """None where the kernels can solve it, else the reason why not."""
    x = problem.x
    if x.dtype not in _DTYPES:
        return f"x is of {x.dtype.value}; there are kernels for {', '.join(dtype.value for dtype in _DTYPES)}"
    if problem.mode is not BatchNormMode.SPATIAL:
        return f"mode {problem.mode.value} has a scale for each element of a plane"
    if not x.size:
        return "x is empty"
    names = (*problem.input_names, *problem.output_names)
    for name, tensor in zip(names, (*problem.inputs, *problem.outputs), strict=True):
        if not tensor.is_row_major:
            return f"{name} ({tensor}) is not in one piece, row by row"
    plane, width = math.prod(x.shape[2:]), PACK_BYTES // 2 // x.dtype.itemsize
    if plane % (width if x.dtype.itemsize == 2 else 2 * width):
        return f"planes of {plane} elements are no whole vectors"
    if x.size >= 2**31:
        return f"x has {x.size} elements, which are more than 32 bits count"
    return None


def _prepare(problem: BatchNormInferenceProblem, figures: DeviceFigures) -> Calls:
    x = problem.x
    plane, itemsize = math.prod(x.shape[2:]), x.dtype.itemsize
    nbytes = PACK_BYTES if plane * itemsize % PACK_BYTES == 0 else PACK_BYTES // 2
    width = nbytes // itemsize
    places = {name: Place(place) for place, name in enumerate((*problem.input_names, *problem.output_names))}
    tensors = dict(zip(problem.input_names, problem.inputs, strict=True))
    params = record(
        _PARAMS,
        epsilon=problem.epsilon,
        vectors=x.size // width,
        plane=small_divisor(plane // width),
        channels=small_divisor(x.shape[1]),
        narrow=sum(1 << bit for bit, name in enumerate(_PARAMETERS) if tensors[name].dtype is not x.dtype.compute),
    )
    addresses: dict[FieldPath, Place] = {name: places[name] for name in ("x", "y")}
    addresses |= {("parameters", i): places[name] for i, name in enumerate(_PARAMETERS)}
    blocks = -(-x.size // (width * _THREADS * _VECTORS))
    early = figures.starts_early
    calls = kernel_call(_units(x.dtype)[nbytes], blocks, _THREADS, params, addresses, starts_early=early)
    alignments = tuple((places[name], nbytes) for name in ("x", "y"))
    return (WhereAligned(alignments, calls, Inference().offer(problem, figures).prepare),)


def _units(dtype: DType) -> dict[int, Unit]:
    """By the bytes of a vector."""
    element = c_type(dtype)
    sizes = (PACK_BYTES,) if dtype.itemsize == 4 else (PACK_BYTES, PACK_BYTES // 2)
    entries = {
        nbytes: f"normalization_given_planes_{element}" + ("" if nbytes == PACK_BYTES else "_halves")
        for nbytes in sizes
    }
    functions = {entry: f"normalize_planes<{element}, {nbytes}>" for nbytes, entry in entries.items()}
    units = generate_together(
        "dnncore/normalization/given_planes.cuh", functions, "PlaneParams", _PARAMS, _THREADS, starts_early=True
    )
    return {nbytes: units[entry] for nbytes, entry in entries.items()}
