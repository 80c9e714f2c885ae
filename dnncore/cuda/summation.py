"""Sums over some dimensions of a tensor: the bias gradient among them.

Where elements or outputs lie side by side, they are reductions by vectors; the kernels here take whatever else there is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, kernel_call
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    TENSOR_VIEW,
    c_type,
    generate_together,
    record,
    struct,
    view,
)
from dnncore.cuda.reduced import BLOCK, THREAD, InParts, Pace, Partition, Team
from dnncore.cuda.reduction_vectors import Columns, Lines
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ReduceOperator
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ReduceProblem, SumProblem

__all__ = ["SUM", "Sum", "SumOfVectors"]

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("output", ADDRESS),
    ("outputs", DIVISOR),
    ("length", "<i8"),
    ("splits", "<i8"),
    ("part", "<i8"),
    ("kept_view", TENSOR_VIEW),
    ("summed_view", TENSOR_VIEW),
    ("output_view", TENSOR_VIEW),
)
_THREADS = {THREAD: 128, BLOCK: BLOCK.size}
"""Per block, by what takes a part."""


def _unit(team: Team, dtype: DType, source: DType, target: DType) -> Unit:
    """The kernel from one element type to another; those that a dtype needs are compiled together."""
    wide = dtype.compute
    if wide is dtype:
        wanted = [(THREAD, dtype, dtype), (BLOCK, dtype, dtype)]
    else:
        wanted = [(t, dtype, to) for t in (THREAD, BLOCK) for to in (dtype, wide)] + [(BLOCK, wide, dtype)]
    units = generate_together(
        "dnncore/sum.cuh",
        {
            _entry(t, dtype, a, b): f"sum_{t.name}_per_output<{c_type(a)}, {c_type(b)}>" for t, a, b in wanted
        },
        "SumParams",
        _PARAMS,
        BLOCK.size,
    )  # fmt: skip
    return units[_entry(team, dtype, source, target)]


def _entry(team: Team, dtype: DType, source: DType, target: DType) -> str:
    level = "" if source is target else "_to_parts" if source is dtype else "_of_parts"
    return f"sum_{team.name}_per_output{level}_{c_type(dtype)}"


class Sum(InParts):
    """y = sum of x over the dimensions in which y has extent 1. Immutable."""

    __slots__ = ()
    # Measured on an H200, as that of `reduction`: rows and columns of 20 to 2^26 elements.
    pace = Pace(step=0.0075, turn=0.65, products=35, finisher=BLOCK, math="dtype")

    def units(self) -> tuple[Unit, ...]:
        """For each dtype from x to y, in its compute type too, and what adds up parts in the workspace."""
        result = []
        for dtype in FLOATING:
            result.append(_unit(self.team, dtype, dtype, dtype))
            result.append(_unit(self.team, dtype, dtype, dtype.compute))
            if self.turns:
                result.append(_unit(BLOCK, dtype, dtype.compute, dtype))
        return tuple(result)

    def part_bytes(self, dtype: DType) -> int:
        """An element of the compute type."""
        return dtype.compute.itemsize

    def calls(self, problem: SumProblem, figures: DeviceFigures, partition: Partition) -> Calls:
        """The sums of the parts, then those of the outputs."""
        dtype, of_y, team = problem.x.dtype, problem.y.dtype, partition.team
        wide, x, y, parts = dtype.compute, Place(0), Place(1), Place(WORKSPACE)
        of_parts = dtype if of_y is dtype else wide
        y_view = view(partition.geometry.kept[0], partition.geometry.kept[-1])
        if partition.splits == 1:
            return _level(figures, partition, _unit(team, dtype, dtype, of_y), x, y, y_view)
        return (
            *_level(figures, partition, _unit(team, dtype, dtype, wide), x, parts),
            *_level(figures, partition.of_parts(BLOCK), _unit(BLOCK, of_parts, wide, of_y), parts, y, y_view),
        )


def _level(
    figures: DeviceFigures, partition: Partition, unit: Unit, x: Place, output: Place, y_view: np.void | None = None
) -> Calls:
    """Sums of all parts: blended into y, or left side by side where there is no view of it."""
    params = record(
        _PARAMS,
        **partition.fields(),
        alpha=1.0,
        summed_view=_summed_view(*partition.geometry.reduced),
        output_view=view((partition.num_parts,), (1,)) if y_view is None else y_view,
    )
    threads = _THREADS[partition.team]
    blocks = partition.blocks(figures, threads)
    return kernel_call(unit, blocks, threads, params, {"x": x, "output": output}, blends=y_view is not None)


def _summed_view(extents: tuple[int, ...], strides: tuple[int, ...]) -> np.void:
    """A view of at least two dimensions, which `sum_of` walks through."""
    missing = (0,) * (2 - len(extents))
    return view((*(1 for _ in missing), *extents), (*missing, *strides))


@dataclass(frozen=True, slots=True)
class SumOfVectors:
    """The same as a reduction by vectors, in float64. Immutable.

    Args:
        way: How vectors lie.
    """

    way: Lines | Columns

    @property
    def name(self) -> str:
        """The reduction's."""
        return self.way.name

    def offer(self, problem: SumProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        if problem.y.dtype is not problem.x.dtype:
            return f"y is of {problem.y.dtype.value}, x of {problem.x.dtype.value}"
        return self.way.offer(ReduceProblem(problem.x, problem.y, ReduceOperator.ADD), figures)

    def units(self) -> tuple[Unit, ...]:
        """The reduction's."""
        return self.way.units()


SUM: tuple[CudaAlgorithm, ...] = (SumOfVectors(Lines()), SumOfVectors(Columns()), *Sum.all())
