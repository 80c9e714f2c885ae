"""Gradients of group normalisations of planes that lie one behind the other: dx and the parameters' in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, WhereAligned, kernel_call
from dnncore.cuda.normalization.frame import PACK_BYTES
from dnncore.cuda.normalization.row_gradients import column_calls, column_units
from dnncore.cuda.normalization.statistics import Anywhere
from dnncore.cuda.params import ADDRESS, BLEND, c_type, generate_together, record, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import GroupNormBackwardProblem

__all__ = ["GroupGradients"]

_THREADS, _WARP = 512, 32
"""Most of a block, kGradientThreads in group_gradients.cuh, and those of a warp."""

_PAIRS = 8
"""Vectors of x, and of dy, that a thread has at most; kGradientPairs there."""

_PAIRS_WANTED = 4
"""That each thread has at least, where a plane has so many and a block room for the threads."""

_LEAST_VECTORS = 16
"""Of a plane; fewer would leave most threads of its warp idle."""

_THREADS_AT_FULL_RATE = 512
"""Per multiprocessor. Assumed, not measured on a GPU."""

_OF_MEMORY_RATE = 0.55
"""Assumed, not measured on a GPU: a multiprocessor has one or two large blocks, which read, add up and write in turn."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "dy", "scale", "mean", "inv_std", "dx", "parts")),
    *((name, "<i4") for name in ("vectors", "planes", "groups", "warps", "is_narrow")),
)
_ANYWHERE = Anywhere("backward")
"""What computes it where addresses are not aligned."""


@dataclass(frozen=True, slots=True)
class GroupGradients:
    """dx, dscale and dbias of groups that a block can keep. Immutable."""

    name: str = "group_gradients"

    def offer(self, problem: GroupNormBackwardProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`; the workspace is for what images give to the parameters' gradients."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        anywhere = _ANYWHERE.offer(problem, figures)
        blocks, threads = problem.x.shape[0] * problem.groups, _warps(problem) * _planes(problem) * _WARP
        parts_bytes = 0
        if _gives_parameters(problem):
            parts_bytes = problem.x.shape[0] * 2 * problem.x.shape[1] * problem.x.dtype.compute.itemsize
        busy = min(blocks * threads / (figures.multiprocessors * _THREADS_AT_FULL_RATE), 1.0)
        nbytes = operand_bytes(problem) + 2 * parts_bytes
        seconds = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE * busy)
        return Offer(
            (2 if parts_bytes else 1) * figures.launch_seconds + seconds,
            partial(_prepare, problem, figures, anywhere),
            max(parts_bytes, anywhere.workspace_bytes),
        )

    def units(self) -> tuple[Unit, ...]:
        """Those of groups and of columns; where addresses are not aligned, the others'."""
        own = (unit for dtype in _DTYPES for unit in _units(dtype).values())
        return (*own, *column_units(_DTYPES), *_ANYWHERE.units())


def _gives_parameters(problem: GroupNormBackwardProblem) -> bool:
    return problem.dscale is not None or problem.dbias is not None


def _planes(problem: GroupNormBackwardProblem) -> int:
    """Of a group."""
    return problem.x.shape[1] // problem.groups


def _vector_bytes(problem: GroupNormBackwardProblem) -> int:
    """What a thread reads at once: 16 bytes where planes are whole ones."""
    return (
        PACK_BYTES if math.prod(problem.x.shape[2:]) * problem.x.dtype.itemsize % PACK_BYTES == 0 else PACK_BYTES // 2
    )


def _vectors(problem: GroupNormBackwardProblem) -> int:
    """Of a plane."""
    return math.prod(problem.x.shape[2:]) * problem.x.dtype.itemsize // _vector_bytes(problem)


def _warps(problem: GroupNormBackwardProblem) -> int:
    """Of a plane: so many that its threads have few vectors each, or as many as there are for it in a block."""
    most = _THREADS // (_WARP * _planes(problem))
    return min(-(-_vectors(problem) // (_WARP * _PAIRS_WANTED)), most)


def _why_not(problem: GroupNormBackwardProblem) -> str | None:
    """None where the kernels can solve it, else the reason why not."""
    x = problem.x
    if x.dtype not in _DTYPES:
        return f"x is of {x.dtype.value}; there are kernels for {', '.join(dtype.value for dtype in _DTYPES)}"
    if not x.size:
        return "x is empty"
    names = (*problem.input_names, *problem.output_names)
    for name, tensor in zip(names, (*problem.inputs, *problem.outputs), strict=True):
        if not tensor.is_row_major:
            return f"{name} ({tensor}) is not in one piece, row by row"
    plane, planes = math.prod(x.shape[2:]), _planes(problem)
    if plane * x.dtype.itemsize % (PACK_BYTES // 2 if x.dtype.itemsize == 2 else PACK_BYTES):
        return f"planes of {plane} elements are no whole vectors"
    if _vectors(problem) < _LEAST_VECTORS:
        return f"planes of {plane} elements are fewer than {_LEAST_VECTORS} vectors, which leave a warp's threads idle"
    if not _warps(problem) or _vectors(problem) > _warps(problem) * _WARP * _PAIRS:
        return f"groups of {planes} planes of {plane} elements are more than a block of {_THREADS} threads keeps"
    if x.shape[0] * problem.groups >= 2**31:
        return f"{x.shape[0] * problem.groups} groups are more than a grid has blocks"
    return None


def _prepare(problem: GroupNormBackwardProblem, figures: DeviceFigures, anywhere: Offer) -> Calls:
    x = problem.x
    places = {name: Place(place) for place, name in enumerate((*problem.input_names, *problem.output_names))}
    params = record(
        _PARAMS,
        vectors=_vectors(problem),
        planes=_planes(problem),
        groups=problem.groups,
        warps=_warps(problem),
        is_narrow=problem.scale is not None and problem.scale.dtype is not x.dtype.compute,
    )
    fields = {"saved_mean": "mean", "saved_inv_std": "inv_std"} | {name: name for name in ("x", "dy", "scale", "dx")}
    addresses: dict[FieldPath, Place] = {fields[name]: place for name, place in places.items() if name in fields}
    if _gives_parameters(problem):
        addresses["parts"] = Place(WORKSPACE)
    calls: Calls = kernel_call(
        _units(x.dtype)[_vector_bytes(problem)],
        x.shape[0] * problem.groups,
        _warps(problem) * _planes(problem) * _WARP,
        params,
        addresses,
        starts_early=figures.starts_early,
    )
    if _gives_parameters(problem):
        calls = (*calls, *column_calls(problem, x.shape[0], x.shape[1], figures))
    alignments = tuple((places[name], _vector_bytes(problem)) for name in ("x", "dy", "dx"))
    return (WhereAligned(alignments, calls, anywhere.prepare),)


def _units(dtype: DType) -> dict[int, Unit]:
    """By the bytes of a vector."""
    element = c_type(dtype)
    sizes = (PACK_BYTES,) if dtype.itemsize == 4 else (PACK_BYTES, PACK_BYTES // 2)
    entries = {
        nbytes: f"normalization_group_gradients_{element}" + ("" if nbytes == PACK_BYTES else "_halves")
        for nbytes in sizes
    }
    functions = {entry: f"group_gradients<{element}, {nbytes}>" for nbytes, entry in entries.items()}
    units = generate_together(
        "dnncore/normalization/group_gradients.cuh",
        functions,
        "GroupGradientParams",
        _PARAMS,
        _THREADS,
        starts_early=True,
    )
    return {nbytes: units[entry] for nbytes, entry in entries.items()}
