"""Softmax, forward, of rows that lie one behind the other, in x as in y: a team of threads has a row in its registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, Place, WhereAligned, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, c_type, generate_together, record, struct
from dnncore.cuda.row_team import DTYPES, THREADS, RowTeams
from dnncore.cuda.softmax import FORWARD as ANYWHERE
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import SoftmaxForwardProblem

__all__ = ["SoftmaxRows"]

_OF_MEMORY_RATE = 0.99
"""Measured on an H200 with a prototype: 64 us for 65,536 rows of 1,000 float16, 127 for float32."""

_PACK_BYTES = 16
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("y", ADDRESS),
    *((name, "<i4") for name in ("rows", "packs", "lanes", "is_fast")),
)


@dataclass(frozen=True, slots=True)
class SoftmaxRows:
    """Softmax or its logarithm, a team of threads for each row. Immutable."""

    name: str = "rows"

    def offer(self, problem: SoftmaxForwardProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        x, y = problem.x, problem.y
        for name, tensor in (("x", x), ("y", y)):
            if not tensor.is_row_major:
                return f"{name} ({tensor}) is not in one piece, row by row"
        inner = 2 if problem.mode is SoftmaxMode.CHANNEL else y.ndim
        if math.prod(y.shape[inner:]) != 1:
            return "elements of a row are no neighbours"
        teams = RowTeams(y.shape[0], math.prod(y.shape[1:]), y.dtype)
        reason = teams.why_not()
        if reason is not None:
            return reason
        rate = figures.bytes_per_second * _OF_MEMORY_RATE * teams.busy(figures)
        prepare = partial(_prepare, problem, teams, figures)
        return Offer(figures.launch_seconds + operand_bytes(problem) / rate, prepare)

    def units(self) -> tuple[Unit, ...]:
        """Two for each dtype."""
        return tuple(_unit(dtype, is_log=is_log) for dtype in DTYPES for is_log in (False, True))


def _prepare(problem: SoftmaxForwardProblem, teams: RowTeams, figures: DeviceFigures) -> Calls:
    params = record(
        _PARAMS,
        rows=teams.rows,
        packs=teams.packs,
        lanes=teams.lanes,
        is_fast=problem.algorithm is SoftmaxAlgorithm.FAST,
    )
    calls = kernel_call(
        _unit(problem.y.dtype, is_log=problem.algorithm is SoftmaxAlgorithm.LOG),
        teams.blocks,
        THREADS,
        params,
        in_order("x", "y"),
        starts_early=figures.starts_early,
    )
    return (
        WhereAligned(((Place(0), _PACK_BYTES), (Place(1), _PACK_BYTES)), calls, partial(_anywhere, problem, figures)),
    )


def _anywhere(problem: SoftmaxForwardProblem, figures: DeviceFigures) -> Calls:
    """By whichever of the others is fastest."""
    offers = [offer for one in ANYWHERE if isinstance(offer := one.offer(problem, figures), Offer)]
    calls: Calls = min(offers, key=lambda offer: offer.seconds).prepare()
    return calls


def _unit(dtype: DType, *, is_log: bool) -> Unit:
    entries = {log: f"softmax_rows_{c_type(dtype)}" + ("_log" if log else "") for log in (False, True)}
    functions = {entry: f"softmax_row<{c_type(dtype)}, {str(log).lower()}>" for log, entry in entries.items()}
    units = generate_together(
        "dnncore/softmax_rows.cuh", functions, "SoftmaxRowParams", _PARAMS, THREADS, starts_early=True
    )
    return units[entries[is_log]]
