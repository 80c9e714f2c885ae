"""Sums over some dimensions of a tensor: the bias gradient among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, blocks_for, single, through_workspace
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
from dnncore.dtypes import DType
from dnncore.problems import SumProblem

__all__ = ["SUM", "Sum"]

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
_THREAD, _BLOCK = Team("thread", 128), Team("block", 256)


def _unit(team: Team, dtype: DType, source: DType, target: DType) -> Unit:
    """The kernel from one element type to another; those that a dtype needs are compiled together."""
    wide = dtype.compute
    if wide is dtype:
        wanted = [(_THREAD, dtype, dtype), (_BLOCK, dtype, dtype)]
    else:
        wanted = [(t, dtype, to) for t in (_THREAD, _BLOCK) for to in (dtype, wide)] + [(_BLOCK, wide, dtype)]
    units = generate_together(
        "dnncore/sum.cuh",
        {
            _entry(t, dtype, a, b): f"sum_{t.name}_per_output<{c_type(a)}, {c_type(b)}>" for t, a, b in wanted
        },
        "SumParams",
        _PARAMS,
        _BLOCK.threads,
    )  # fmt: skip
    return units[_entry(team, dtype, source, target)]


def _entry(team: Team, dtype: DType, source: DType, target: DType) -> str:
    level = "" if source is target else "_to_parts" if source is dtype else "_of_parts"
    return f"sum_{team.name}_per_output{level}_{c_type(dtype)}"


@dataclass(frozen=True, slots=True)
class Sum:
    """y = sum of x over the dimensions in which y has extent 1. Immutable.

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
    math: str = "dtype"

    def supports(self, problem: SumProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        return None if self.team is _BLOCK else Geometry.of(problem.x, problem.y).suits_threads

    def workspace_bytes(self, problem: SumProblem) -> int:
        """Room for one element of the compute type a part, when the outputs are cut into parts."""
        geometry = Geometry.of(problem.x, problem.y)
        splits, _ = parts(geometry, self.min_part, self.max_items)
        return splits * geometry.outputs * problem.x.dtype.compute.itemsize if splits > 1 else 0

    def units(self) -> tuple[Unit, ...]:
        """For each dtype one from x to y, and two by way of the workspace."""
        result = []
        for dtype in FLOATING:
            result.append(_unit(self.team, dtype, dtype, dtype))
            if self.max_items:
                result.append(_unit(self.team, dtype, dtype, dtype.compute))
                result.append(_unit(_BLOCK, dtype, dtype.compute, dtype))
        return tuple(result)

    def prepare(self, problem: SumProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        geometry, dtype = Geometry.of(problem.x, problem.y), problem.x.dtype
        extents, x_strides, y_strides = geometry.kept
        splits, part = parts(geometry, self.min_part, self.max_items)
        outputs = geometry.outputs
        first = record(
            _PARAMS,
            outputs=divisor(outputs),
            length=geometry.length,
            splits=splits,
            part=part,
            kept_view=view(extents, x_strides),
            summed_view=_summed_view(*geometry.reduced),
        )
        output_view = view(extents, y_strides)
        block = (self.team.threads, 1, 1)
        grid = (blocks_for(outputs * splits, self.team.parts_per_block), 1, 1)
        if splits == 1:
            first["output_view"] = output_view
            return single(device.kernel(_unit(self.team, dtype, dtype, dtype)), grid, block, first, ("x",), ("output",))
        first["output_view"] = view((splits * outputs,), (1,))
        second = record(
            _PARAMS,
            outputs=divisor(outputs),
            length=splits,
            splits=1,
            part=splits,
            kept_view=view((outputs,), (1,)),
            summed_view=_summed_view((splits,), (outputs,)),
            output_view=output_view,
        )
        wide = dtype.compute
        to_parts = single(device.kernel(_unit(self.team, dtype, dtype, wide)), grid, block, first, ("x",), ("output",))
        from_parts = single(
            device.kernel(_unit(_BLOCK, dtype, wide, dtype)),
            (blocks_for(outputs, 1), 1, 1),
            (_BLOCK.threads, 1, 1),
            second,
            ("x",),
            ("output",),
        )

        return through_workspace(to_parts, from_parts)


def _summed_view(extents: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """A view of at least two dimensions, which `sum_of` walks through."""
    missing = (0,) * (2 - len(extents))
    return view((*(1 for _ in missing), *extents), (*missing, *strides))


SUM = (
    Sum("thread_per_output", _THREAD, min_part=64, max_items=132 * 2048),
    Sum("block_per_output", _BLOCK, min_part=16384, max_items=132 * 16),
    Sum("block_per_output_whole", _BLOCK, min_part=1, max_items=0),
)
