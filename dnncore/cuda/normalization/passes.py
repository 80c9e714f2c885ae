"""Launches of several kernels in a row, which leave what they found to each other in the workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Kernel, Unit
from dnncore.cuda.memory import aligned
from dnncore.cuda.normalization.frame import PARAMS, THREADS, Operand
from dnncore.cuda.params import FLOATING, c_type, generate_together
from dnncore.cuda.stream import CudaStream
from dnncore.dtypes import DType
from dnncore.problems.normalization.operands import OptionalOperands
from dnncore.problems.problem import Operands

__all__ = ["Pass", "Scratch", "all_passes", "launch_passes"]

NormalizationOperands = Operands | OptionalOperands

_MAX_BLOCKS = 1 << 20

FIELDS = {
    "x": Operand.X,
    "dy": Operand.DY,
    "y": Operand.OUTPUT,
    "dx": Operand.OUTPUT,
    "scale": Operand.SCALE,
    "bias": Operand.BIAS,
    "mean": Operand.MEAN,
    "saved_mean": Operand.MEAN,
    "variance": Operand.INV_STD,
    "saved_inv_std": Operand.INV_STD,
    "running_mean": Operand.FIRST_OLD,
    "running_variance": Operand.SECOND_OLD,
    "new_running_mean": Operand.FIRST_NEW,
    "new_running_variance": Operand.SECOND_NEW,
    "old_dscale": Operand.FIRST_OLD,
    "old_dbias": Operand.SECOND_OLD,
    "dscale": Operand.FIRST_NEW,
    "dbias": Operand.SECOND_NEW,
}
"""Which operand a problem's field is."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """A piece of the workspace. Immutable."""

    offset_bytes: int
    nbytes: int

    @property
    def end(self) -> int:
        """Where the next piece may begin."""
        return aligned(self.offset_bytes + self.nbytes)


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel launch of several. Immutable but for the parameters, whose addresses a launch fills in.

    Args:
        kernel: "forward", "backward", "finish_forward" or "finish_backward".
        blocks: Of the grid; with 0 there is nothing to do.
        params: The struct.
        operands: Which it is given.
        partials: Where parts' results are.
        totals: Where groups' sums are.
    """

    kernel: str
    blocks: int
    params: np.ndarray
    operands: frozenset[Operand]
    partials: Scratch | None = None
    totals: Scratch | None = None

    @property
    def workspace_end(self) -> int:
        """Bytes of workspace that it needs."""
        return max((piece.end for piece in (self.partials, self.totals) if piece is not None), default=0)


def _units(dtype: DType, direction: str) -> dict[str, Unit]:
    """The two kernels of a direction by the last words of their names, compiled together."""
    element = c_type(dtype)
    functions = {
        f"normalization_{direction}_{element}": f"normalization_{direction}<{element}>",
        f"normalization_finish_{direction}_{element}": f"normalization_finish_{direction}<Compute<{element}>>",
    }
    units = generate_together(
        f"dnncore/normalization/{direction}.cuh", functions, "NormalizationParams", PARAMS, THREADS
    )
    return dict(zip((direction, f"finish_{direction}"), units.values(), strict=True))


def all_passes(direction: str) -> tuple[Unit, ...]:
    """Every unit of a direction."""
    return tuple(unit for dtype in FLOATING for unit in _units(dtype, direction).values())


def launch_passes(
    passes: Sequence[Pass], direction: str, dtype: DType, problem: NormalizationOperands, device: CudaDevice
) -> Launch:
    """Load the kernels and wire the problem's operands to their parameters."""
    units = _units(dtype, direction)
    work = [(_Wired(one, problem), device.kernel(units[one.kernel])) for one in passes if one.blocks]

    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        assert isinstance(stream, CudaStream)
        for wired, kernel in work:
            wired.enqueue(stream, kernel, alpha, inputs, beta, outputs, workspace)

    return launch


class _Wired:
    """A pass that knows which address goes where. Owned by the thread of its plan."""

    def __init__(self, one: Pass, problem: NormalizationOperands) -> None:
        self._pass = one
        self._grid = (min(one.blocks, _MAX_BLOCKS), 1, 1)
        self._inputs = _places(problem.input_names, one.operands)
        self._outputs = _places(problem.output_names, one.operands)

    def enqueue(
        self,
        stream: CudaStream,
        kernel: Kernel,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        """Fill in the addresses and launch."""
        params = self._pass.params
        params["alpha"], params["beta"] = alpha, beta
        for position, operand in self._inputs:
            params["operands"][operand] = inputs[position]
        for position, operand in self._outputs:
            params["operands"][operand] = outputs[position]
        for name, piece in (("partials", self._pass.partials), ("totals", self._pass.totals)):
            if piece is not None:
                params[name] = (workspace or 0) + piece.offset_bytes
        kernel.launch(stream, self._grid, (THREADS, 1, 1), params)


def _places(names: Sequence[str], operands: frozenset[Operand]) -> tuple[tuple[int, Operand], ...]:
    """Positions among the names of the operands that are wanted."""
    return tuple((position, FIELDS[name]) for position, name in enumerate(names) if FIELDS[name] in operands)
