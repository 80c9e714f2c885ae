"""Launches of several kernels in a row, which leave what they found to each other in the workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit
from dnncore.cuda.memory import aligned
from dnncore.cuda.normalization.frame import PACK_BYTES, PARAMS, THREADS, Operand
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
        kernel: "forward", "backward", "finish_forward", "finish_backward" or "channels_backward".
        blocks: Of the grid; with 0 there is nothing to do.
        params: The struct.
        operands: Which it is given.
        partials: Where parts' results are.
        totals: Where groups' sums are.
        aligned_kernel: The one in its place where addresses are multiples of 16 bytes; None if there is none.
    """

    kernel: str
    blocks: int
    params: np.ndarray
    operands: frozenset[Operand]
    partials: Scratch | None = None
    totals: Scratch | None = None
    aligned_kernel: str | None = None

    @property
    def workspace_end(self) -> int:
        """Bytes of workspace that it needs."""
        return max((piece.end for piece in (self.partials, self.totals) if piece is not None), default=0)


def _units(dtype: DType, direction: str) -> dict[str, Unit]:
    """The kernels of a direction by the last words of their names, compiled together."""
    element = c_type(dtype)
    arguments = {
        direction: element,
        f"{direction}_aligned": element,
        f"{direction}_kept": element,
        f"finish_{direction}": f"Compute<{element}>",
    }
    if direction == "backward":
        arguments["channels_backward"] = f"Compute<{element}>"
    functions = {f"normalization_{name}_{element}": f"normalization_{name}<{of}>" for name, of in arguments.items()}
    units = generate_together(
        f"dnncore/normalization/{direction}_aligned.cuh", functions, "NormalizationParams", PARAMS, THREADS
    )
    return dict(zip(arguments, units.values(), strict=True))


def all_passes(direction: str) -> tuple[Unit, ...]:
    """Every unit of a direction."""
    return tuple(unit for dtype in FLOATING for unit in _units(dtype, direction).values())


def launch_passes(
    passes: Sequence[Pass], direction: str, dtype: DType, problem: NormalizationOperands, device: CudaDevice
) -> Launch:
    """Load the kernels and wire the problem's operands to their parameters."""
    units = _units(dtype, direction)
    work = [_Wired(one, problem, units, device) for one in passes if one.blocks]

    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        assert isinstance(stream, CudaStream)
        for wired in work:
            wired.enqueue(stream, alpha, inputs, beta, outputs, workspace)

    return launch


class _Wired:
    """A pass that knows which address goes where. Owned by the thread of its plan."""

    def __init__(
        self, one: Pass, problem: NormalizationOperands, units: Mapping[str, Unit], device: CudaDevice
    ) -> None:
        self._pass = one
        self._kernel = device.kernel(units[one.kernel])
        self._aligned_kernel = self._kernel if one.aligned_kernel is None else device.kernel(units[one.aligned_kernel])
        self._grid = (min(one.blocks, _MAX_BLOCKS), 1, 1)
        self._inputs = _places(problem.input_names, one.operands)
        self._outputs = _places(problem.output_names, one.operands)

    def enqueue(
        self,
        stream: CudaStream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        """Fill in the addresses and launch."""
        params = self._pass.params
        params["alpha"], params["beta"] = alpha, beta
        addresses = {operand: inputs[position] for position, operand in self._inputs}
        addresses |= {operand: outputs[position] for position, operand in self._outputs}
        for operand, address in addresses.items():
            params["operands"][operand] = address
        for name, piece in (("partials", self._pass.partials), ("totals", self._pass.totals)):
            if piece is not None:
                params[name] = (workspace or 0) + piece.offset_bytes
        aligned = all(address % PACK_BYTES == 0 for address in addresses.values())
        kernel = self._aligned_kernel if aligned else self._kernel
        kernel.launch(stream, self._grid, (THREADS, 1, 1), params)


def _places(names: Sequence[str], operands: frozenset[Operand]) -> tuple[tuple[int, Operand], ...]:
    """Positions among the names of the operands that are wanted."""
    return tuple((position, FIELDS[name]) for position, name in enumerate(names) if FIELDS[name] in operands)
