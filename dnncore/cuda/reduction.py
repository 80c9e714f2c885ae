"""Reductions by every operator, with the index of what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    TENSOR_VIEW,
    c_type,
    divisor,
    generate_together,
    record,
    struct,
    view,
)
from dnncore.cuda.reduced import Geometry, Team, parts
from dnncore.descriptors import ReduceOperator
from dnncore.dtypes import DType
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
_THREAD, _BLOCK = Team("thread", _THREADS), Team("block", _THREADS)


def _units(dtype: DType) -> dict[str, Unit]:
    """The kernels of a dtype, by the team's name or "parts"; compiled together."""
    entries = {name: f"reduce_{name}_{c_type(dtype)}" for name in ("thread", "block", "parts")}
    functions = {entry: f"reduce_{name}<{c_type(dtype)}>" for name, entry in entries.items()}
    units = generate_together("dnncore/reduction.cuh", functions, "ReduceParams", _PARAMS, _THREADS)
    return {name: units[entry] for name, entry in entries.items()}


@dataclass(frozen=True, slots=True)
class Reduction:
    """y = x reduced over the dimensions in which y has extent 1. Immutable.

    Args:
        name: See `backend.Algorithm`.
        team: What takes a part of an output's elements.
        min_part: Fewest elements that are worth its while.
        max_items: Parts of all outputs together; 0 never cuts an output, and takes no workspace.
    """

    name: str
    team: Team
    min_part: int
    max_items: int
    deterministic: bool = True
    math: str = "fp64"

    def supports(self, problem: ReduceProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        return None if self.team is _BLOCK else Geometry.of(problem.x, problem.y).suits_threads

    def workspace_bytes(self, problem: ReduceProblem) -> int:
        """Room for what became of each part, when the outputs are cut into parts."""
        geometry = Geometry.of(problem.x, problem.y)
        splits, _ = parts(geometry, self.min_part, self.max_items)
        return splits * geometry.outputs * _PART.itemsize if splits > 1 else 0

    def units(self) -> tuple[Unit, ...]:
        """For each dtype."""
        names = (self.team.name, "parts") if self.max_items else (self.team.name,)
        return tuple(_units(dtype)[name] for dtype in FLOATING for name in names)

    def prepare(self, problem: ReduceProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        others = () if problem.indices is None else (problem.indices,)
        geometry, units = Geometry.of(problem.x, problem.y, *others), _units(problem.x.dtype)
        extents, x_strides, *others_strides, y_strides = geometry.kept
        splits, part = parts(geometry, self.min_part, self.max_items)
        params = record(
            _PARAMS,
            outputs=divisor(geometry.outputs),
            length=geometry.length,
            splits=splits,
            part=part,
            kept_view=view(extents, x_strides),
            reduced_view=view(*(geometry.reduced if problem.indices is None else _in_order(problem))),
            output_view=view(extents, y_strides),
            operation=_OPERATORS[problem.operator],
        )
        names = ["output"]
        for strides in others_strides:
            params["indices_view"] = view(extents, strides)
            names.append("indices")
        blocks = blocks_for(geometry.outputs * splits, self.team.parts_per_block)
        kernel = device.kernel(units[self.team.name])
        first = single(kernel, (blocks, 1, 1), (_THREADS, 1, 1), params, ("x",), names)
        if splits == 1:
            return first
        grid = (blocks_for(geometry.outputs, _THREADS), 1, 1)
        second = single(device.kernel(units["parts"]), grid, (_THREADS, 1, 1), params, ("parts",), names)

        def launch(
            stream: Stream,
            alpha: float,
            inputs: Sequence[Address],
            beta: float,
            outputs: Sequence[Address],
            workspace: Address | None,
        ) -> None:
            params["parts"] = workspace
            first(stream, alpha, inputs, beta, outputs, None)
            second(stream, alpha, (workspace,), beta, outputs, None)

        return launch


def _in_order(problem: ReduceProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of what is reduced in the order in which indices count it, which need not be that of memory."""
    x, y = problem.x, problem.y
    axes = [axis for axis in range(x.ndim) if y.shape[axis] != x.shape[axis]]
    return tuple(x.shape[axis] for axis in axes) or (1,), tuple(x.strides[axis] for axis in axes) or (0,)


ALGORITHMS = (
    Reduction("thread_per_output", _THREAD, min_part=64, max_items=132 * 2048),
    Reduction("block_per_output", _BLOCK, min_part=16384, max_items=132 * 16),
    Reduction("block_per_output_whole", _BLOCK, min_part=1, max_items=0),
)
