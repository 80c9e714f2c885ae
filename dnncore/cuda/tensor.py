"""Adding a tensor to another, with broadcasting and any strides, and its adjoint: summing one over dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.elementwise import Elementwise, Function, elementwise
from dnncore.cuda.launch import Unit, blocks_for, single
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FULL_PRECISION,
    TENSOR_VIEW,
    c_type,
    collapse,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.transpose import Transpose
from dnncore.dtypes import DType
from dnncore.problems import SumProblem

__all__ = ["ADD", "SUM", "Sum"]

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
_SHORT = 32
"""Sums of up to this many elements would leave most of a block idle."""

_THREADS = {"thread_per_output": 128, "block_per_output": 256}

_Views = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Geometry:
    """A sum as the kernel sees it: collapsed dimensions, and how many parts each output is cut into. Immutable."""

    kept: _Views  # extents, strides in x, strides in y
    summed: _Views  # extents, strides in x

    @classmethod
    def of(cls, problem: SumProblem) -> _Geometry:
        x, y = problem.x, problem.y
        kept = [axis for axis in range(x.ndim) if y.shape[axis] == x.shape[axis]]
        summed = [axis for axis in range(x.ndim) if axis not in kept]
        return cls(
            collapse([x.shape[a] for a in kept], [x.strides[a] for a in kept], [y.strides[a] for a in kept]),
            collapse([x.shape[a] for a in summed], [x.strides[a] for a in summed]),
        )

    @property
    def outputs(self) -> int:
        return math.prod(self.kept[0])

    @property
    def length(self) -> int:
        return math.prod(self.summed[0])


@dataclass(frozen=True, slots=True)
class Sum:
    """y = sum of x over the dimensions in which y has extent 1. Immutable.

    Args:
        name: See `backend.Algorithm`.
        team: What takes a part: "thread_per_output", for short sums and for outputs whose elements lie side by side, or
            "block_per_output".
        min_part: Fewest elements that are worth a thread's, or a block's, while.
        max_items: Parts of all outputs together that keep an H200 busy; 0 never cuts an output, and takes no workspace.
    """

    name: str
    team: str
    min_part: int
    max_items: int
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: SumProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        if self.team == "block_per_output":
            return None
        geometry = _Geometry.of(problem)
        side_by_side = geometry.kept[1][-1] == 1 and geometry.kept[0][-1] >= _SHORT
        if geometry.length <= _SHORT or side_by_side:
            return None
        return f"sums of {geometry.length} elements are longer than {_SHORT} and do not lie side by side"

    def workspace_bytes(self, problem: SumProblem) -> int:
        """Room for one element a part, when the outputs are cut into parts."""
        geometry = _Geometry.of(problem)
        splits, _ = self._parts(geometry)
        return splits * geometry.outputs * problem.x.dtype.itemsize if splits > 1 else 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype and level."""
        return tuple(
            _unit(team, dtype) for team in dict.fromkeys((self.team, "block_per_output")) for dtype in FULL_PRECISION
        )

    def prepare(self, problem: SumProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        geometry, dtype = _Geometry.of(problem), problem.x.dtype
        splits, part = self._parts(geometry)
        outputs = geometry.outputs
        first = record(
            _PARAMS,
            outputs=divisor(outputs),
            length=geometry.length,
            splits=splits,
            part=part,
            kept_view=view(*geometry.kept[:2]),
            summed_view=_summed_view(*geometry.summed),
        )
        output_view = view(geometry.kept[0], geometry.kept[2])
        kernel = device.kernel(_unit(self.team, dtype))
        threads = _THREADS[self.team]
        grid = (blocks_for(outputs * splits, threads if self.team == "thread_per_output" else 1), 1, 1)
        if splits == 1:
            first["output_view"] = output_view
            return single(kernel, grid, (threads, 1, 1), first, ("x",), ("output",))
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
        to_parts = single(kernel, grid, (threads, 1, 1), first, ("x",), ("output",))
        block = _THREADS["block_per_output"]
        from_parts = single(
            device.kernel(_unit("block_per_output", dtype)),
            (blocks_for(outputs, 1), 1, 1),
            (block, 1, 1),
            second,
            ("x",),
            ("output",),
        )

        def launch(
            stream: Stream,
            alpha: float,
            inputs: Sequence[Address],
            beta: float,
            outputs: Sequence[Address],
            workspace: Address | None,
        ) -> None:
            to_parts(stream, 1.0, inputs, 0.0, (workspace,), None)
            from_parts(stream, alpha, (workspace,), beta, outputs, None)

        return launch

    def _parts(self, geometry: _Geometry) -> tuple[int, int]:
        """How many parts, and elements of each: a function of the problem alone, so that results are the same everywhere."""
        wanted = min(self.max_items // max(geometry.outputs, 1), geometry.length // self.min_part)
        part = -(-geometry.length // max(wanted, 1))
        return (-(-geometry.length // part) if part else 1), part


def _summed_view(extents: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """A view of at least two dimensions, which `sum_of` walks through."""
    missing = (0,) * (2 - len(extents))
    return view((*(1 for _ in missing), *extents), (*missing, *strides))


def _unit(team: str, dtype: DType) -> Unit:
    return generate(
        header="dnncore/sum.cuh",
        entry=f"sum_{team}_{c_type(dtype)}",
        function=f"sum_{team}<{c_type(dtype)}>",
        struct_name="SumParams",
        dtype=_PARAMS,
        threads=_THREADS[team],
    )


ADD: tuple[Transpose | Elementwise, ...] = (Transpose(), *elementwise(Function("Copy", dtypes=tuple(DType))))
SUM = (
    Sum("thread_per_output", "thread_per_output", min_part=64, max_items=132 * 2048),
    Sum("block_per_output", "block_per_output", min_part=16384, max_items=132 * 16),
    Sum("block_per_output_whole", "block_per_output", min_part=1, max_items=0),
)
