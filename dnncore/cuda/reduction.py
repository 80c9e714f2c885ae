"""Reductions by every operator, with the index of what was found."""

from __future__ import annotations

from typing import Any

from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, blocks_for, in_order, kernel_call
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    TENSOR_VIEW,
    Field,
    c_type,
    divisor,
    generate_together,
    record,
    struct,
    view,
)
from dnncore.cuda.reduced import BLOCK, Geometry, InParts, Pace, Partition
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ReduceOperator
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ReduceProblem

__all__ = [
    "ALGORITHMS",
    "FIELDS",
    "PART_BYTES",
    "THREADS",
    "WHOLE",
    "Reduction",
    "fields",
    "in_order_of_indices",
    "join",
    "parts_unit",
    "places",
]

_OPERATORS = {operator: i for i, operator in enumerate(ReduceOperator)}
"""`dnncore::ReduceOperator`."""

_PART = struct(("value", "<f8"), ("index", "<i8"))
FIELDS: tuple[Field, ...] = (
    *BLEND,
    ("x", ADDRESS),
    ("output", ADDRESS),
    ("indices", ADDRESS),
    ("parts", ADDRESS),
    ("outputs", DIVISOR),
    ("length", "<i8"),
    ("splits", "<i8"),
    ("part", "<i8"),
    ("kept_view", TENSOR_VIEW),
    ("reduced_view", TENSOR_VIEW),
    ("output_view", TENSOR_VIEW),
    ("indices_view", TENSOR_VIEW),
    ("operation", "<i4"),
    ("abreast", "<i4"),
)
"""Of `dnncore::ReduceParams`."""

_PARAMS = struct(*FIELDS)
THREADS = 256
"""Per block of every kernel."""

PART_BYTES = _PART.itemsize
"""What a part leaves in the workspace: what became of it and where it was found, whatever the element type."""

_MOST_ABREAST = 8
"""Outputs whose parts a block puts together, neighbours in the workspace; `dnncore::kMostAbreast`."""


def _units(dtype: DType) -> dict[str, Unit]:
    """The kernels of a dtype, by the team's name or "parts"; compiled together."""
    entries = {name: f"reduce_{name}_{c_type(dtype)}" for name in ("thread", "block", "parts")}
    functions = {entry: f"reduce_{name}<{c_type(dtype)}>" for name, entry in entries.items()}
    units = generate_together("dnncore/reduction.cuh", functions, "ReduceParams", _PARAMS, THREADS)
    return {name: units[entry] for name, entry in entries.items()}


def parts_unit(dtype: DType) -> Unit:
    """What puts the parts of outputs together."""
    return _units(dtype)["parts"]


def fields(problem: ReduceProblem, geometry: Geometry, splits: int, part: int) -> dict[str, Any]:
    """Those of `FIELDS` that are no addresses.

    Args:
        problem: What is reduced.
        geometry: The same with few dimensions.
        splits: Parts of each output.
        part: Elements of each; the last may have fewer.
    """
    extents, x_strides, *others_strides, y_strides = geometry.kept
    return {
        "outputs": divisor(geometry.outputs),
        "length": geometry.length,
        "splits": splits,
        "part": part,
        "kept_view": view(extents, x_strides),
        "reduced_view": view(*(geometry.reduced if problem.indices is None else in_order_of_indices(problem))),
        "output_view": view(extents, y_strides),
        "operation": _OPERATORS[problem.operator],
        **({"indices_view": view(extents, others_strides[0])} if others_strides else {}),
    }


def places(problem: ReduceProblem, splits: int) -> dict[FieldPath, Place]:
    """Those of `FIELDS` that are addresses."""
    found = in_order("x", "output", None if problem.indices is None else "indices")
    if splits > 1:
        found["parts"] = Place(WORKSPACE)
    return found


def join(problem: ReduceProblem, geometry: Geometry, splits: int, part: int, figures: DeviceFigures) -> Calls:
    """What puts the parts of outputs together, where there are several."""
    if splits == 1:
        return ()
    abreast = _MOST_ABREAST
    while abreast > 1 and geometry.outputs < abreast * figures.multiprocessors:
        abreast //= 2  # rather more blocks, whose threads have fewer parts each
    params = record(_PARAMS, **fields(problem, geometry, splits, part), abreast=abreast)
    return kernel_call(
        parts_unit(problem.x.dtype),
        blocks_for(figures, geometry.outputs, abreast),
        THREADS,
        params,
        places(problem, splits),
        starts_early=figures.starts_early,
    )


class Reduction(InParts):
    """y = x reduced over the dimensions in which y has extent 1. Immutable."""

    __slots__ = ()
    # Measured on an H200: rows and columns of 20 to 2^26 elements. Each element waits for the one before it.
    pace = Pace(step=0.075, turn=0.95, products=100, finisher=BLOCK, math="fp64")

    def units(self) -> tuple[Unit, ...]:
        """For each dtype."""
        names = (self.team.name, "parts") if self.turns else (self.team.name,)
        return tuple(_units(dtype)[name] for dtype in FLOATING for name in names)

    def part_bytes(self, _dtype: DType) -> int:
        """`PART_BYTES`."""
        return PART_BYTES

    def calls(self, problem: ReduceProblem, figures: DeviceFigures, partition: Partition) -> Calls:
        """What becomes of the parts, then of the outputs."""
        cut = partition.geometry, partition.splits, partition.part
        params = record(_PARAMS, **fields(problem, *cut))
        unit, grid = _units(problem.x.dtype)[partition.team.name], partition.blocks(figures, THREADS)
        first = kernel_call(unit, grid, THREADS, params, places(problem, partition.splits))
        return (*first, *join(problem, *cut, figures))


def in_order_of_indices(problem: ReduceProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of what is reduced in the order in which indices count it, which need not be that of memory."""
    x, y = problem.x, problem.y
    axes = [axis for axis in range(x.ndim) if y.shape[axis] != x.shape[axis]]
    return tuple(x.shape[axis] for axis in axes) or (1,), tuple(x.strides[axis] for axis in axes) or (0,)


ALGORITHMS = Reduction.all()
WHOLE = ALGORITHMS[-1]
"""What reduces anything, without a workspace."""
