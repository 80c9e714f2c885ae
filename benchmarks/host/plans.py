"""First plans, in processor time and without a GPU: of convolutions never seen, with compiled kernels present.

An H200 that is not there (`benchmarks.nowhere`) chooses, prepares and binds; kernels count as loaded. Every distinct convolution of
the nets is planned in each dtype, layout and kind, and so are convolutions with as many channels as no net has, at batch sizes that
take turns: each plan is the first one of its problem, and thousands of others come between two of one layer. Medians over the batch
sizes count. Processor time depends on what else a machine's cores do: `interpreter` says what a call of Python took meanwhile.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.host.row import Row, interpreter_us
from benchmarks.layers import LayerGeometry
from benchmarks.net_layers import GROUPED, convolutions
from benchmarks.nowhere import handle_nowhere
from dnncore import RELU, DType, TensorDescriptor
from dnncore.descriptors import Layout
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, Problem

__all__ = ["rows"]

_BATCHES = (56, 24, 40, 32, 48, 64, 72)
"""The first loads what the others use."""

_UNUSUAL = tuple(
    LayerGeometry(f"{taps}x{taps}-{c}-128-{size}{f'-s{stride}' if stride > 1 else ''}", 8, c, size, 128, taps, stride, taps // 2)
    for taps, stride, size in ((3, 1, 28), (1, 1, 28), (1, 1, 7), (3, 2, 28), (7, 2, 28))
    for c in (81, 88)
)  # fmt: skip
"""Channels as no net has them, and such as the copy engine does not take. Where taps, stride or image allow it, copies, merged
planes or phases come into question."""

_WORST = 10
"""As many rows as the worst have of their own."""


@dataclass(frozen=True)
class _Plan:
    """A kind of plan of a layer. Immutable."""

    layer: LayerGeometry
    kind: str
    dtype: DType
    layout: Layout

    def problem(self, batch: int) -> Problem:
        layer = replace(self.layer, n=batch)
        if self.kind in _FUSED:
            return _fused(
                layer.problem(Direction.FORWARD, self.dtype, self.layout), with_residual=self.kind == _FUSED[1]
            )
        return layer.problem(Direction(self.kind), self.dtype, self.layout)

    def __str__(self) -> str:
        return f"{self.kind} {self.layer.name}, {self.dtype.value}, {self.layout.value}"


_FUSED = ("fused", "fused with a residual")
_KINDS = (*(direction.value for direction in Direction), *_FUSED)
_DTYPES = (DType.FLOAT32, DType.FLOAT16)
_LAYOUTS = (Layout.NCHW, Layout.NHWC)


def _fused(plain: ConvolutionProblem, *, with_residual: bool) -> FusedConvolutionProblem:
    bias = TensorDescriptor.packed((1, plain.w.shape[0], 1, 1), plain.x.dtype)
    z = plain.y if with_residual else None
    return FusedConvolutionProblem(plain.x, plain.w, plain.y, plain.convolution, bias=bias, z=z, activation=RELU)


def rows() -> Iterator[Row]:
    """For each dtype, layout and kind the median and the slowest, then the slowest of all."""
    before = interpreter_us()
    times = _times()
    yield Row("interpreter, at first plans", (before + interpreter_us()) / 2, "us")
    for dtype, layout, kind in itertools.product(_DTYPES, _LAYOUTS, _KINDS):
        of_kind = {
            plan: ms for plan, ms in times.items() if (plan.dtype, plan.layout, plan.kind) == (dtype, layout, kind)
        }
        what = f"first plans, {kind}, {dtype.value}, {layout.value}"
        yield Row(f"{what}: median of {len(of_kind)}", statistics.median(of_kind.values()), "ms", most=1)
        yield Row(f"{what}: slowest", max(of_kind.values()), "ms", most=1)
    for plan in sorted(times, key=times.__getitem__, reverse=True)[:_WORST]:
        yield Row(f"first plan, {plan}", times[plan], "ms", most=1)


def _plans() -> list[_Plan]:
    layers = dict.fromkeys((*convolutions(1), *GROUPED, *_UNUSUAL))
    return [_Plan(*each) for each in itertools.product(layers, _KINDS, _DTYPES, _LAYOUTS)]


def _times() -> dict[_Plan, float]:
    """Milliseconds of processor time."""
    found: dict[_Plan, list[float]] = {plan: [] for plan in _plans()}
    gc.collect()
    gc.disable()  # what a collection takes is no part of the plan that it falls on
    with handle_nowhere() as (handle, _):
        for batch, (plan, times) in itertools.product(_BATCHES, found.items()):
            problem = plan.problem(batch)
            started = time.process_time()
            handle.plan(problem)
            times.append((time.process_time() - started) * 1e3)
    gc.enable()
    return {plan: statistics.median(times[1:]) for plan, times in found.items()}
