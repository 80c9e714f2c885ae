"""Local response normalisation: strips of channels, and windows over any dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, blocks_for, in_order, kernel_call
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
from dnncore.cuda.unit import Unit
from dnncore.descriptors import MAX_NDIM, LRNMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import LRNBackwardProblem, LRNForwardProblem

__all__ = ["AcrossChannels", "LRNProblem", "ThroughShares", "Windows", "places_of", "settings_of", "tensors_of"]

LRNProblem = LRNForwardProblem | LRNBackwardProblem

_THREADS = 128
_STRIP = 8
"""Channels of a strip, where they are not neighbours in memory."""

_MOST_RECOMPUTED = 8
"""Elements of a window up to which summing every neighbour's window again is cheaper than writing and reading its share."""

_ELEMENT, _STRIP_TERM, _STRIP_SHARE = 160, 12, 105
"""Multiply-adds that would take as long as an element of a strip, and as each of its window's, forward and backward; fitted on an
H200, where neither direction waits for the memory."""

_PLACE, _TERM = 200, 40
"""Likewise where windows have any dimensions, and each axis of each takes a division. Assumed."""

_CYCLES_ALONE = 6
"""Of a thread, for what counts as a multiply-add, where there are too few threads to hide that one waits for the other."""

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


def tensors_of(problem: LRNProblem) -> tuple[TensorDescriptor, TensorDescriptor, TensorDescriptor]:
    """x, dy and what is written; forward has no dy, and x stands in its place."""
    if isinstance(problem, LRNForwardProblem):
        return problem.x, problem.x, problem.y
    return problem.x, problem.dy, problem.dx


def settings_of(problem: LRNProblem, *names: str) -> dict[str, object]:
    """Fields that are the same in every kernel: all, or those of these names."""
    lrn = problem.lrn
    dimensions = 1 if lrn.mode is LRNMode.ACROSS_CHANNELS else problem.x.ndim - 2
    settings = {
        "share": lrn.alpha / lrn.n**dimensions,
        "exponent": lrn.beta,
        "k": lrn.k,
        "before": lrn.before,
        "after": lrn.after,
        "channels": problem.x.shape[1],
    }
    return {name: settings[name] for name in names or settings}


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
    """Windows across channels, a strip of channels per thread. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "across_channels"

    def offer(self, problem: LRNProblem, figures: DeviceFigures) -> Offer | str:
        """What it would take; or the reason why it cannot, or had better not."""
        if problem.lrn.mode is not LRNMode.ACROSS_CHANNELS:
            return f"mode {problem.lrn.mode.value} sums within a channel"
        if self.direction == "backward" and problem.lrn.n > _MOST_RECOMPUTED:
            return f"windows of {problem.lrn.n} channels are too long to be summed again for every neighbour"
        term = _STRIP_TERM if self.direction == "forward" else _STRIP_SHARE
        seconds = _seconds(problem, figures, _ELEMENT + term * problem.lrn.n)
        return Offer(seconds, partial(self._prepare, problem, figures))

    def units(self) -> tuple[Unit, ...]:
        """Two lengths of a strip for each dtype."""
        return tuple(
            unit
            for dtype in FLOATING
            for name, unit in _units(dtype).items()
            if name.startswith(f"lrn_across_{self.direction}")
        )

    def _prepare(self, problem: LRNProblem, figures: DeviceFigures) -> Calls:
        tensors = tensors_of(problem)
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
            **settings_of(problem),
            **_dimensions((*extents[:axis], strips, *extents[axis:]), (*strided, (0,) * (len(extents) + 1))),
            size=math.prod(extents) * strips,
            steps=(*steps, 0),
            axis=axis,
        )
        unit = _units(x.dtype)[f"lrn_across_{self.direction}_{strip}"]
        blocks = blocks_for(figures, math.prod(extents) * strips, _THREADS)
        return kernel_call(unit, blocks, _THREADS, params, places_of(problem))


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over any dimensions, an element per thread; backward sums the window of every neighbour. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "windows"

    def offer(self, problem: LRNProblem, figures: DeviceFigures) -> Offer:
        """What it would take; it solves everything."""
        window = _window(problem)
        work = _PLACE + _TERM * window
        if self.direction == "backward":
            work = _PLACE + work * window
        return Offer(_seconds(problem, figures, work), partial(_windows, problem, figures, (self.direction,)))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_units(dtype)["lrn_windows"] for dtype in FLOATING)


@dataclass(frozen=True, slots=True)
class ThroughShares:
    """Backward in two launches: what each element gives to its neighbours goes through the workspace. Immutable."""

    name: str = "through_shares"

    def offer(self, problem: LRNBackwardProblem, figures: DeviceFigures) -> Offer:
        """What it would take; it solves everything. The workspace has a number in the compute type for each element."""
        seconds = 2 * _seconds(problem, figures, _PLACE + _TERM * _window(problem))
        workspace_bytes = problem.x.size * problem.x.dtype.compute.itemsize
        return Offer(seconds, partial(_windows, problem, figures, ("shares", "gather")), workspace_bytes)

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_units(dtype)["lrn_windows"] for dtype in FLOATING)


def _window(problem: LRNProblem) -> int:
    """Most elements that a window has."""
    extents = problem.x.shape[1:2] if problem.lrn.mode is LRNMode.ACROSS_CHANNELS else problem.x.shape[2:]
    return math.prod(min(problem.lrn.n, extent) for extent in extents)


def _seconds(problem: LRNProblem, figures: DeviceFigures, work: int) -> float:
    """Estimated time of a launch whose threads each have so many multiply-adds' worth of work for an element."""
    x = problem.x
    if not x.size:
        return 0.0
    rate = figures.products_per_second(Maths.of(x.dtype.compute))
    return figures.launch_seconds + work * max(x.size / rate, _CYCLES_ALONE / figures.clock_hz)


def _windows(problem: LRNProblem, figures: DeviceFigures, stages: Sequence[str]) -> Calls:
    """Calls of the windows' kernel, one for each stage."""
    x, dy, output = tensors_of(problem)
    # Slowest first, so that neighbouring threads work on neighbouring elements; dimensions of one element say nothing.
    axes = sorted((axis for axis in range(x.ndim) if x.shape[axis] != 1), key=lambda axis: -x.strides[axis]) or [0]
    across = problem.lrn.mode is LRNMode.ACROSS_CHANNELS
    extended = [place for place, axis in enumerate(axes) if (axis == 1 if across else axis > 1)]
    extents = [x.shape[axis] for axis in axes]
    shares = [math.prod(extents[place + 1 :]) for place in range(len(axes))]
    strides = [*([tensor.strides[axis] for axis in axes] for tensor in (x, dy, output)), shares]
    unit, blocks = _units(x.dtype)["lrn_windows"], blocks_for(figures, x.size, _THREADS)
    calls: Calls = ()
    for stage in stages:
        params = record(
            _PARAMS,
            **settings_of(problem),
            **_dimensions(extents, strides),
            size=x.size,
            axis=extended[-1] if extended else len(axes) - 1,
            windows=sum(1 << place for place in extended),
            stage=_STAGES[stage],
        )
        places = places_of(problem) if len(stages) == 1 else {**places_of(problem), "shares": Place(WORKSPACE)}
        calls += kernel_call(unit, blocks, _THREADS, params, places)
    return calls


def places_of(problem: LRNProblem) -> dict[FieldPath, Place]:
    """Where a kernel finds the operands; of those of the backward operation it does not read y."""
    names = ("x", "output") if isinstance(problem, LRNForwardProblem) else (None, "dy", "x", "output")
    return in_order(*names)
