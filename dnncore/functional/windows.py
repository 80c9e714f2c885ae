"""Reductions along one dimension under windows that no pooling kernel takes: of different lengths, or whose taps are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dnncore.descriptors import ReduceOperator, TensorDescriptor
from dnncore.functional.operation import Draft
from dnncore.problems import FillProblem, ReduceProblem, SumProblem

__all__ = ["Placed", "Window", "Windows", "adaptive_windows", "average_along", "dilated_windows", "maximum_along"]


@dataclass(frozen=True)
class Window:
    """What one result is reduced of. Immutable.

    Args:
        start: Its first place.
        taps: How many places it has.
    """

    start: int
    taps: int


@dataclass(frozen=True)
class Windows:
    """The windows along one dimension. Immutable.

    Args:
        each: One for each result.
        period: After how many of them they are alike again, further on by one distance.
        dilation: How far apart the places of a window are.
    """

    each: tuple[Window, ...]
    period: int = 1
    dilation: int = 1


@dataclass(frozen=True)
class _Run:
    """Windows of one length, as far apart as their results are: one launch. Immutable.

    Args:
        first: The first result.
        step: From one result to the next.
        count: How many there are.
        window: That of the first result.
        stride: From one window to the next.
    """

    first: int
    step: int
    count: int
    window: Window
    stride: int


Placed = tuple[int, TensorDescriptor]
"""A tensor of an operation: its place, and how it is seen."""


def adaptive_windows(extent: int, count: int) -> Windows:
    """`count` windows that cover an extent: window i goes from i extent / count, rounded down, to (i + 1) extent / count, up."""
    starts = [i * extent // count for i in range(count)]
    each = tuple(Window(start, -(-(i + 1) * extent // count) - start) for i, start in enumerate(starts))
    return Windows(each, count // math.gcd(count, extent))


def dilated_windows(extent: int, count: int, taps: int, stride: int, before: int, dilation: int) -> Windows:
    """Windows whose places are `dilation` apart, without those in the padding, of which `before` are in front."""
    each = []
    for i in range(count):
        start = i * stride - before
        first, last = max(0, -(start // dilation)), min(taps - 1, (extent - 1 - start) // dilation)
        each.append(Window(start + first * dilation, last - first + 1) if last >= first else Window(0, 0))
    return Windows(tuple(each), dilation=dilation)


def _runs(windows: Windows) -> list[_Run]:
    """The runs, each of which is one launch."""
    each, period = windows.each, windows.period
    runs: list[list[int]] = []
    for residue in range(period):
        runs.append([])
        for i in range(residue, len(each), period):
            if not _continues(each, runs[-1], i):
                runs.append([])
            runs[-1].append(i)
    return [
        _Run(run[0], period, len(run), each[run[0]], each[run[1]].start - each[run[0]].start if len(run) > 1 else 0)
        for run in runs
    ]


def _continues(windows: Sequence[Window], run: Sequence[int], i: int) -> bool:
    """Whether a window is as long as those of a run, and as far from its last one as these are from each other."""
    if not run:
        return True
    move = windows[i].start - windows[run[-1]].start
    alike = windows[i].taps == windows[run[0]].taps and move >= 0
    return alike and (len(run) == 1 or move == windows[run[1]].start - windows[run[0]].start)


def average_along(draft: Draft, axis: int, windows: Windows, x: Placed, y: Placed) -> None:
    """The average of each window of x in y, which has x's dtype or, unrounded, its compute type."""
    for run in _runs(windows):
        (place, read), (made, written) = _seen(draft, axis, run, windows.dilation, x, y)
        draft.step(SumProblem(read, written), place, made, alpha=1 / run.window.taps)


def maximum_along(draft: Draft, axis: int, windows: Windows, x: Placed, y: Placed) -> None:
    """The maximum of each window of x in y; minus infinity where it has no places, NaN where one is."""
    for run in _runs(windows):
        (place, read), (made, written) = _seen(draft, axis, run, windows.dilation, x, y)
        if run.window.taps:
            draft.step(ReduceProblem(read, written, ReduceOperator.MAX), place, made)
        else:
            draft.step(FillProblem(written), made, alpha=-math.inf)


def _seen(draft: Draft, axis: int, run: _Run, dilation: int, x: Placed, y: Placed) -> tuple[Placed, Placed]:
    """x with the places of a window as its last dimension, and of y the results of a run, with one of extent 1."""
    (place, whole), (made, result) = x, y
    step = whole.strides[axis]
    read = _with_axis(whole, axis, run.count, step * run.stride, run.window.taps, step * dilation)
    written = _with_axis(result, axis, run.count, result.strides[axis] * run.step, 1, 1)
    return (
        (draft.view(place, read, step * run.window.start), read),
        (draft.view(made, written, result.strides[axis] * run.first), written),
    )


def _with_axis(
    tensor: TensorDescriptor, axis: int, count: int, stride: int, last: int, last_stride: int
) -> TensorDescriptor:
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[axis], strides[axis] = count, stride
    return replace(tensor, shape=(*shape, last), strides=(*strides, last_stride))
