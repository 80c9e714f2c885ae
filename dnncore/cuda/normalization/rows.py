"""Layer and RMS normalisation of rows that lie one behind the other: a team of threads has a row in its registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, FieldPath, Place, WhereAligned, kernel_call
from dnncore.cuda.normalization.frame import PACK_BYTES
from dnncore.cuda.normalization.statistics import Anywhere
from dnncore.cuda.params import ADDRESS, BLEND, c_type, generate, record, struct
from dnncore.cuda.row_team import DTYPES, THREADS, RowTeams
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import LayerNormForwardProblem

__all__ = ["Rows"]

_OF_MEMORY_RATE = {2: 0.98, 4: 0.98}
"""By the bytes of an element [measured on an H200 with a prototype: 67 to 68 us for 64 million float16, 132 to 133 for float32]."""

_OF_A_LAUNCH = 0.75
"""What one takes of that of kernels for all layouts, as a launch of `block_per_group` does [assumed]."""

_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "scale", "bias", "y", "mean", "inv_std")),
    ("epsilon", "<f8"),
    ("share", "<f8"),
    *((name, "<i4") for name in ("rows", "packs", "lanes", "narrow")),
)
_ANYWHERE = Anywhere("forward")
"""What computes it where addresses are not aligned."""

_FIELDS = {name: name for name in ("x", "scale", "bias", "y")} | {"saved_mean": "mean", "saved_inv_std": "inv_std"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Layer and RMS normalisation, a team of threads for each row. Immutable."""

    name: str = "rows"

    def offer(self, problem: LayerNormForwardProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`; the workspace is for what computes it where addresses are not aligned."""
        names = (*problem.input_names, *problem.output_names)
        for name, tensor in zip(names, (*problem.inputs, *problem.outputs), strict=True):
            if not tensor.is_row_major:
                return f"{name} ({tensor}) is not in one piece, row by row"
        shape = problem.x.shape
        teams = RowTeams(math.prod(shape[: problem.axis]), math.prod(shape[problem.axis :]), problem.x.dtype)
        reason = teams.why_not()
        if reason is not None:
            return reason
        anywhere = _ANYWHERE.offer(problem, figures)
        rate = figures.bytes_per_second * _OF_MEMORY_RATE[problem.x.dtype.itemsize] * teams.busy(figures)
        seconds = figures.launch_seconds * _OF_A_LAUNCH + operand_bytes(problem) / rate
        prepare = partial(_prepare, problem, teams, figures.starts_early, anywhere)
        return Offer(seconds, prepare, anywhere.workspace_bytes)

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype, and those for addresses that are not aligned."""
        return (*map(_unit, DTYPES), *_ANYWHERE.units())


def _prepare(problem: LayerNormForwardProblem, teams: RowTeams, starts_early: bool, anywhere: Offer) -> Calls:
    names = (*problem.input_names, *problem.output_names)
    places = {name: Place(place) for place, name in enumerate(names)}
    dtype = problem.x.dtype
    parameters = {"scale": problem.scale, "bias": problem.bias}
    params = record(
        _PARAMS,
        epsilon=problem.epsilon,
        share=1 / teams.length,
        rows=teams.rows,
        packs=teams.packs,
        lanes=teams.lanes,
        narrow=sum(
            1 << bit
            for bit, one in enumerate(parameters.values())
            if one is not None and one.dtype is not dtype.compute
        ),
    )
    addresses: dict[FieldPath, Place] = {_FIELDS[name]: place for name, place in places.items()}
    calls = kernel_call(_unit(dtype), teams.blocks, THREADS, params, addresses, starts_early=starts_early)
    width = PACK_BYTES // dtype.itemsize
    alignments = [(places[name], PACK_BYTES) for name in ("x", "y")]
    alignments += [(places[name], width * one.dtype.itemsize) for name, one in parameters.items() if one is not None]
    return (WhereAligned(tuple(alignments), calls, anywhere.prepare),)


def _unit(dtype: DType) -> Unit:
    return generate(
        "dnncore/normalization/rows.cuh",
        f"normalization_rows_{c_type(dtype)}",
        f"normalize_row<{c_type(dtype)}>",
        "RowParams",
        _PARAMS,
        THREADS,
        starts_early=True,
    )
