"""Gradients of layer and RMS normalisations over rows that lie one behind the other: dx and the parameters' in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, WhereAligned, kernel_call
from dnncore.cuda.normalization.frame import PACK_BYTES
from dnncore.cuda.normalization.statistics import Anywhere
from dnncore.cuda.params import ADDRESS, BLEND, FLOATING, c_type, generate, generate_together, record, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import GroupNormBackwardProblem, LayerNormBackwardProblem

__all__ = ["RowGradients", "column_calls", "column_units"]

_THREADS, _COLUMN_THREADS, _WARP = 256, 256, 32
"""kRowThreads, kColumnThreads and kWarpSize in row_gradients.cuh."""

_FEW_THREADS = 128
"""Of a block, where a row needs no more: the fewer, the fewer wait for one another [measured on an H200 with a prototype]."""

_PACKS, _STAGES = {2: 2, 4: 4, 8: 4}, 2
"""Of a row, that a thread has at most, by the bytes of an element, and rows under way; kRowPacks and kRowStages there."""

_BLOCKS = 2
"""Of _THREADS, per multiprocessor, for which the compiler limits registers."""

_REGISTERS = 128
"""Of a thread [most of those for sm_90a in the gates' baseline]: there are as many blocks as have room at a time."""

_OF_MEMORY_RATE = 0.95
"""Measured on an H200 with a prototype of the first launch: 104 to 107 us for 64 million float16, 198 to 206 for float32."""

_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "dy", "scale", "mean", "inv_std", "dx", "parts")),
    ("rows", "<i8"),
    ("share", "<f8"),
    ("packs", "<i4"),
    ("lanes", "<i4"),
)
_COLUMN_PARAMS = struct(
    ("parts", ADDRESS),
    ("old_gradients", ADDRESS, 2),
    ("gradients", ADDRESS, 2),
    ("alpha", "<f8"),
    ("beta", "<f8"),
    ("blocks", "<i8"),
    ("length", "<i4"),
    ("is_narrow", "<i4"),
)
_ANYWHERE = Anywhere("backward")
"""What computes it where addresses are not aligned."""


@dataclass(frozen=True, slots=True)
class RowGradients:
    """dx, dscale and dbias of rows in one piece, at most as long as a block can keep. Immutable."""

    name: str = "rows"

    def offer(self, problem: LayerNormBackwardProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`; the workspace is for what blocks give to the parameters' gradients."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        anywhere = _ANYWHERE.offer(problem, figures)
        blocks = _blocks(problem, figures)
        parts_bytes = blocks * 2 * _length(problem) * problem.x.dtype.compute.itemsize
        busy = min(blocks / _most_blocks(problem, figures), 1.0)
        nbytes = operand_bytes(problem) + 2 * parts_bytes
        seconds = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE * busy)
        return Offer(
            2 * figures.launch_seconds + seconds,
            partial(_prepare, problem, figures, anywhere),
            max(parts_bytes, anywhere.workspace_bytes),
        )

    def units(self) -> tuple[Unit, ...]:
        """Those of rows and of columns; where addresses are not aligned, the others'."""
        own = [
            unit
            for dtype in FLOATING
            for unit in (
                *(_row_unit(dtype, scale) for scale in dict.fromkeys((dtype.compute, dtype))),
                _column_unit(dtype),
            )
        ]
        return (*own, *_ANYWHERE.units())


def _length(problem: LayerNormBackwardProblem) -> int:
    """Elements of a row."""
    return math.prod(problem.x.shape[problem.axis :])


def _lanes(problem: LayerNormBackwardProblem) -> int:
    """Threads that share a row."""
    itemsize = problem.x.dtype.itemsize
    most_of_a_thread = _PACKS[itemsize] * (PACK_BYTES // itemsize)
    return max(1 << (-(-_length(problem) // most_of_a_thread) - 1).bit_length(), _WARP)


def _blocks(problem: LayerNormBackwardProblem, figures: DeviceFigures) -> int:
    """Of the first launch: a function of the problem and the number of multiprocessors."""
    rows = math.prod(problem.x.shape[: problem.axis])
    return min(-(-rows // (_threads(problem) // _lanes(problem))), _most_blocks(problem, figures))


def _most_blocks(problem: LayerNormBackwardProblem, figures: DeviceFigures) -> int:
    """As many as run at a time."""
    return figures.multiprocessors * figures.resident_blocks(_threads(problem), _REGISTERS)


def _threads(problem: LayerNormBackwardProblem) -> int:
    """Of a block."""
    return max(_lanes(problem), _FEW_THREADS)


def _why_not(problem: LayerNormBackwardProblem) -> str | None:
    """None where the kernels can solve it, else the reason why not."""
    if problem.dscale is None and problem.dbias is None:
        return "no gradient of a parameter is asked for, and so x and dy are read once anyway"
    if not problem.x.size:
        return "x is empty"
    for name, tensor in zip(
        (*problem.input_names, *problem.output_names), (*problem.inputs, *problem.outputs), strict=True
    ):
        if not tensor.is_row_major:
            return f"{name} ({tensor}) is not in one piece, row by row"
    length, width = _length(problem), PACK_BYTES // problem.x.dtype.itemsize
    if length % width:
        return f"rows of {length} elements are no whole packs of {width}"
    if _lanes(problem) > _THREADS:
        return f"rows of {length} elements are more than a block of {_THREADS} threads keeps"
    return None


def _prepare(problem: LayerNormBackwardProblem, figures: DeviceFigures, anywhere: Offer) -> Calls:
    dtype, length, lanes, blocks = problem.x.dtype, _length(problem), _lanes(problem), _blocks(problem, figures)
    threads = _threads(problem)
    names = (*problem.input_names, *problem.output_names)
    places = {name: Place(place) for place, name in enumerate(names)}
    params = record(
        _PARAMS,
        rows=math.prod(problem.x.shape[: problem.axis]),
        share=1 / length,
        packs=length * dtype.itemsize // PACK_BYTES,
        lanes=lanes,
    )
    fields = {"saved_mean": "mean", "saved_inv_std": "inv_std"} | {name: name for name in ("x", "dy", "scale", "dx")}
    addresses: dict[FieldPath, Place] = {fields[name]: place for name, place in places.items() if name in fields}
    addresses["parts"] = Place(WORKSPACE)
    rows = kernel_call(
        _row_unit(dtype, dtype.compute if problem.scale is None else problem.scale.dtype),
        blocks,
        threads,
        params,
        addresses,
        shared_bytes=threads * _STAGES * _PACKS[dtype.itemsize] * 2 * PACK_BYTES,
        starts_early=figures.starts_early,
    )
    columns = column_calls(problem, blocks, length, figures)
    width = PACK_BYTES // dtype.itemsize
    aligned = tuple((places[name], PACK_BYTES) for name in ("x", "dy", "dx"))
    if problem.scale is not None:
        aligned = (*aligned, (places["scale"], width * problem.scale.dtype.itemsize))
    return (WhereAligned(aligned, (*rows, *columns), anywhere.prepare),)


def column_calls(
    problem: LayerNormBackwardProblem | GroupNormBackwardProblem, blocks: int, length: int, figures: DeviceFigures
) -> Calls:
    """Add up what so many blocks have left at the beginning of the workspace, [blocks, 2, length], to dscale and dbias."""
    names = (*problem.input_names, *problem.output_names)
    places = {name: Place(place) for place, name in enumerate(names)}
    gradients = [(problem.old_dscale, problem.old_dbias), (problem.dscale, problem.dbias)]
    bits = [tensor is not None and tensor.dtype is not problem.x.dtype.compute for pair in gradients for tensor in pair]
    params = record(
        _COLUMN_PARAMS,
        alpha=problem.parameter_alpha,
        beta=problem.parameter_beta,
        blocks=blocks,
        length=length,
        is_narrow=sum(bit << i for i, bit in enumerate(bits)),
    )
    addresses: dict[FieldPath, Place] = {
        (field, i): places[name]
        for field, pair in (("old_gradients", ("old_dscale", "old_dbias")), ("gradients", ("dscale", "dbias")))
        for i, name in enumerate(pair)
        if name in places
    }
    addresses["parts"] = Place(WORKSPACE)
    return kernel_call(
        _column_unit(problem.x.dtype),
        -(-length // _WARP),
        _COLUMN_THREADS,
        params,
        addresses,
        blends=False,
        starts_early=figures.starts_early,
    )


def _row_unit(dtype: DType, scale: DType) -> Unit:
    suffix = "" if scale is dtype.compute else "_narrow"
    entry = f"normalization_row_gradients_{c_type(dtype)}{suffix}"
    units = generate_together(
        "dnncore/normalization/row_gradients.cuh",
        {entry: f"row_gradients<{c_type(dtype)}, {c_type(scale)}>"},
        "RowGradientParams",
        _PARAMS,
        _THREADS,
        starts_early=True,
        blocks=_BLOCKS,
    )
    return units[entry]


def column_units(dtypes: Iterable[DType]) -> tuple[Unit, ...]:
    """The kernels of `column_calls`."""
    return tuple(_column_unit(dtype) for dtype in dtypes)


def _column_unit(dtype: DType) -> Unit:
    return generate(
        "dnncore/normalization/row_gradients.cuh",
        f"normalization_column_gradients_{c_type(dtype)}",
        f"column_gradients<{c_type(dtype)}>",
        "ColumnGradientParams",
        _COLUMN_PARAMS,
        _COLUMN_THREADS,
        starts_early=True,
    )
