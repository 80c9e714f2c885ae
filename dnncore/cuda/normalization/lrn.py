"""Local response normalisation: strips of channels, and windows over any dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Kernel, Unit, blocks_for
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    c_type,
    collapse,
    divisor,
    generate_together,
    record,
    struct,
)
from dnncore.cuda.stream import CudaStream
from dnncore.descriptors import MAX_NDIM, LRNMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import LRNBackwardProblem, LRNForwardProblem

__all__ = ["BACKWARD", "FORWARD", "AcrossChannels", "ThroughShares", "Windows"]

_LRN = LRNForwardProblem | LRNBackwardProblem

_THREADS = 128
_STRIP = 8
"""Channels of a strip, where they are not neighbours in memory."""

_MOST_RECOMPUTED = 8
"""Elements of a window up to which summing every neighbour's window again is cheaper than writing and reading its share."""

_OPERANDS = 4
"""LrnOperand in lrn.cuh: x, dy, output, shares."""

_STAGES = {"forward": 0, "shares": 1, "gather": 2, "backward": 3}
_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("dy", ADDRESS),
    ("output", ADDRESS),
    ("shares", ADDRESS),
    ("share", "<f8"),
    ("exponent", "<f8"),
    ("k", "<f8"),
    ("before", "<i8"),
    ("after", "<i8"),
    ("size", "<i8"),
    ("channels", "<i8"),
    ("steps", "<i8", _OPERANDS),
    ("extents", DIVISOR, MAX_NDIM),
    ("strides", "<i8", (_OPERANDS, MAX_NDIM)),
    ("ndim", "<i4"),
    ("axis", "<i4"),
    ("windows", "<i4"),
    ("stage", "<i4"),
)


def _tensors(problem: _LRN) -> tuple[TensorDescriptor, TensorDescriptor, TensorDescriptor]:
    """x, dy and what is written; forward has no dy, and x stands in its place."""
    if isinstance(problem, LRNForwardProblem):
        return problem.x, problem.x, problem.y
    return problem.x, problem.dy, problem.dx


def _settings(problem: _LRN) -> dict[str, object]:
    """Fields that are the same in every kernel."""
    lrn = problem.lrn
    dimensions = 1 if lrn.mode is LRNMode.ACROSS_CHANNELS else problem.x.ndim - 2
    return {
        "share": lrn.alpha / lrn.n**dimensions,
        "exponent": lrn.beta,
        "k": lrn.k,
        "before": lrn.before,
        "after": lrn.after,
        "channels": problem.x.shape[1],
    }


def _dimensions(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> dict[str, object]:
    missing = MAX_NDIM - len(extents)
    return {
        "extents": [divisor(extent) for extent in (*extents, *(1,) * missing)],
        "strides": [(*steps, *(0,) * missing) for steps in strides],
        "ndim": len(extents),
    }


def _units(dtype: DType) -> dict[str, Unit]:
    """All kernels of an element type, by their names without it."""
    element = c_type(dtype)
    functions = {
        f"lrn_across_{direction}_{strip}": f"lrn_across_{direction}<{element}, {strip}>"
        for direction in ("forward", "backward")
        for strip in (1, _STRIP)
    } | {"lrn_windows": f"lrn_windows<{element}>"}
    entries = {f"{name}_{element}": function for name, function in functions.items()}
    units = generate_together("dnncore/normalization/lrn.cuh", entries, "LrnParams", _PARAMS, _THREADS)
    return dict(zip(functions, units.values(), strict=True))


@dataclass(frozen=True, slots=True)
class AcrossChannels:
    """Windows across channels, a strip of channels a thread. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "across_channels"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: _LRN, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        if problem.lrn.mode is not LRNMode.ACROSS_CHANNELS:
            return f"mode {problem.lrn.mode.value} sums within a channel"
        if self.direction == "backward" and problem.lrn.n > _MOST_RECOMPUTED:
            return f"windows of {problem.lrn.n} channels are too long to be summed again for every neighbour"
        return None

    def workspace_bytes(self, problem: _LRN) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """Two lengths of a strip for each dtype."""
        return tuple(
            unit
            for dtype in FLOATING
            for name, unit in _units(dtype).items()
            if name.startswith(f"lrn_across_{self.direction}")
        )

    def prepare(self, problem: _LRN, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        tensors = _tensors(problem)
        others = [axis for axis in range(problem.x.ndim) if axis != 1]
        x = tensors[0]
        extents, *strides = collapse(
            [x.shape[axis] for axis in others], *([t.strides[axis] for axis in others] for t in (*tensors, x))
        )
        steps = [tensor.strides[1] for tensor in tensors]
        # Slowest first, as the others are: neighbouring threads then work on neighbouring elements.
        axis = sum(1 for extent, stride in zip(extents, strides[0], strict=True) if extent == 1 or stride >= steps[0])
        strip = 1 if axis == len(extents) else _STRIP
        strips = -(-x.shape[1] // strip)
        strided = [(*s[:axis], step * strip, *s[axis:]) for s, step in zip(strides[:-1], steps, strict=True)]
        params = record(
            _PARAMS,
            **_settings(problem),
            **_dimensions((*extents[:axis], strips, *extents[axis:]), (*strided, (0,) * (len(extents) + 1))),
            size=math.prod(extents) * strips,
            steps=(*steps, 0),
            axis=axis,
        )
        kernel = device.kernel(_units(x.dtype)[f"lrn_across_{self.direction}_{strip}"])
        grid = (blocks_for(int(params["size"]), _THREADS), 1, 1)
        return _launch(problem, [(kernel, grid, params)])


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over any dimensions, an element a thread; backward sums the window of every neighbour. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "windows"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: _LRN, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """It supports everything."""
        return None

    def workspace_bytes(self, problem: _LRN) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_units(dtype)["lrn_windows"] for dtype in FLOATING)

    def prepare(self, problem: _LRN, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        return _windows(problem, device, self.direction)


@dataclass(frozen=True, slots=True)
class ThroughShares:
    """Backward in two launches: what each element gives to its neighbours goes through the workspace. Immutable."""

    name: str = "through_shares"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: LRNBackwardProblem, device: CudaDevice) -> str | None:  # noqa: ARG002
        """It supports everything."""
        return None

    def workspace_bytes(self, problem: LRNBackwardProblem) -> int:
        """A number in the compute type for each element."""
        return problem.x.size * problem.x.dtype.compute.itemsize

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_units(dtype)["lrn_windows"] for dtype in FLOATING)

    def prepare(self, problem: LRNBackwardProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        return _windows(problem, device, "shares", "gather")


def _windows(problem: _LRN, device: CudaDevice, *stages: str) -> Launch:
    """Launches of the windows' kernel, one a stage."""
    x, dy, output = _tensors(problem)
    # Slowest first, so that neighbouring threads work on neighbouring elements; dimensions of one element say nothing.
    axes = sorted((axis for axis in range(x.ndim) if x.shape[axis] != 1), key=lambda axis: -x.strides[axis]) or [0]
    across = problem.lrn.mode is LRNMode.ACROSS_CHANNELS
    extended = [place for place, axis in enumerate(axes) if (axis == 1 if across else axis > 1)]
    extents = [x.shape[axis] for axis in axes]
    shares = [math.prod(extents[place + 1 :]) for place in range(len(axes))]
    strides = [*([tensor.strides[axis] for axis in axes] for tensor in (x, dy, output)), shares]
    kernel = device.kernel(_units(x.dtype)["lrn_windows"])
    grid = (blocks_for(x.size, _THREADS), 1, 1)
    work = []
    for stage in stages:
        params = record(
            _PARAMS,
            **_settings(problem),
            **_dimensions(extents, strides),
            size=x.size,
            axis=extended[-1] if extended else len(axes) - 1,
            windows=sum(1 << place for place in extended),
            stage=_STAGES[stage],
        )
        work.append((kernel, grid, params))
    return _launch(problem, work)


def _launch(problem: _LRN, work: Sequence[tuple[Kernel, tuple[int, int, int], np.ndarray]]) -> Launch:
    """Launch kernels in a row; an empty tensor launches nothing."""
    names = ("x",) if isinstance(problem, LRNForwardProblem) else ("y", "dy", "x")
    wanted = [(position, name) for position, name in enumerate(names) if name != "y"]

    def launch(
        stream: Stream,
        alpha: float,
        inputs: Sequence[Address],
        beta: float,
        outputs: Sequence[Address],
        workspace: Address | None,
    ) -> None:
        assert isinstance(stream, CudaStream)
        for kernel, grid, params in work:
            params["alpha"], params["beta"] = alpha, beta
            for position, name in wanted:
                params[name] = inputs[position]
            params["output"] = outputs[0]
            params["shares"] = workspace or 0
            if math.prod(grid):
                kernel.launch(stream, grid, (_THREADS, 1, 1), params)

    return launch


FORWARD = (AcrossChannels("forward"), Windows("forward"))
BACKWARD = (AcrossChannels("backward"), ThroughShares(), Windows("backward"))
