"""Reductions by every operator, with the index of what was found."""

from __future__ import annotations

from dnncore.cuda.calls import WORKSPACE, Calls, Place, blocks_for, in_order, kernel_call
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
from dnncore.cuda.reduced import THREAD, InParts, Pace, Partition
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ReduceOperator
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ReduceProblem

__all__ = ["ALGORITHMS", "Reduction"]

_OPERATORS = {operator: i for i, operator in enumerate(ReduceOperator)}
"""`dnncore::ReduceOperator`."""

_PART = struct(("value", "<f8"), ("index", "<i8"))
_PARAMS = struct(
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
)
_THREADS = 256


def _units(dtype: DType) -> dict[str, Unit]:
    """The kernels of a dtype, by the team's name or "parts"; compiled together."""
    entries = {name: f"reduce_{name}_{c_type(dtype)}" for name in ("thread", "block", "parts")}
    functions = {entry: f"reduce_{name}<{c_type(dtype)}>" for name, entry in entries.items()}
    units = generate_together("dnncore/reduction.cuh", functions, "ReduceParams", _PARAMS, _THREADS)
    return {name: units[entry] for name, entry in entries.items()}


class Reduction(InParts):
    """y = x reduced over the dimensions in which y has extent 1. Immutable."""

    __slots__ = ()
    # Measured on an H200: rows and columns of 20 to 2^26 elements. Each element waits for the one before it.
    pace = Pace(step=0.075, turn=0.95, products=100, finisher=THREAD, math="fp64")

    def units(self) -> tuple[Unit, ...]:
        """For each dtype."""
        names = (self.team.name, "parts") if self.parts_per_multiprocessor else (self.team.name,)
        return tuple(_units(dtype)[name] for dtype in FLOATING for name in names)

    def part_bytes(self, _dtype: DType) -> int:
        """What became of it and where it was found, whatever the element type."""
        return _PART.itemsize

    def calls(self, problem: ReduceProblem, figures: DeviceFigures, partition: Partition) -> Calls:
        """What becomes of the parts, then of the outputs; both kernels take the same parameters."""
        geometry, units = partition.geometry, _units(problem.x.dtype)
        extents, _, *others_strides, y_strides = geometry.kept
        params = record(
            _PARAMS,
            **partition.fields(),
            reduced_view=view(*(geometry.reduced if problem.indices is None else _in_order(problem))),
            output_view=view(extents, y_strides),
            operation=_OPERATORS[problem.operator],
        )
        if others_strides:
            params["indices_view"] = view(extents, others_strides[0])
        places = in_order("x", "output", "indices" if others_strides else None)
        if partition.splits > 1:
            places["parts"] = Place(WORKSPACE)
        first = kernel_call(units[partition.team.name], partition.blocks(figures, _THREADS), _THREADS, params, places)
        if partition.splits == 1:
            return first
        grid = blocks_for(figures, geometry.outputs, _THREADS)
        return (*first, *kernel_call(units["parts"], grid, _THREADS, params, places))


def _in_order(problem: ReduceProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of what is reduced in the order in which indices count it, which need not be that of memory."""
    x, y = problem.x, problem.y
    axes = [axis for axis in range(x.ndim) if y.shape[axis] != x.shape[axis]]
    return tuple(x.shape[axis] for axis in axes) or (1,), tuple(x.strides[axis] for axis in axes) or (0,)


ALGORITHMS = Reduction.all()
