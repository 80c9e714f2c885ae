"""Our own tensors: an operation, a replay, a plan, and the import."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.host.row import Row, host_us, host_us_beside
from dnncore import RELU, ConvolutionDescriptor, DType, Handle, TensorDescriptor, ops
from dnncore.descriptors import Layout
from dnncore.functional import conv2d
from dnncore.problems import ConvolutionProblem, Direction
from dnncore.program import Span

__all__ = ["replays", "rows"]

_PLANNED = ((3, 1, 28), (1, 1, 28), (1, 1, 7), (3, 2, 28), (7, 2, 28))
"""Convolutions whose first plan is timed: taps along each dimension, stride, extent of the image. The second and the third may be
computed over copies, the last two over phases."""

_PLANNED_OPERANDS = ((DType.FLOAT32, Layout.NCHW), (DType.FLOAT16, Layout.NCHW), (DType.FLOAT16, Layout.NHWC))
"""Their dtype, and how they lie."""

_REPLAYED = (10, 175, 1000)
"""Launches of captured programs: the second has those of ResNet-50."""

_IN_FLIGHT = 3500
"""Kernels that are enqueued before the device is given time to run them: more of them may keep the host waiting."""


def rows() -> Iterator[Row]:
    with Handle("cuda:0") as handle:
        yield from _operations(handle)
        for steps in _REPLAYED:
            yield from replays(handle, steps)
        yield from _plans(handle)
    yield Row('python -c "import dnncore"', _import_seconds(), "s", most=0.2)


def _operations(handle: Handle) -> Iterator[Row]:
    shape = (1, 64, 14, 14)
    x, y = handle.upload(np.ones(shape, np.float32)), handle.tensor(shape)
    w = handle.upload(np.ones((64, 64, 3, 3), np.float32))
    conv = ConvolutionDescriptor.make(padding=1)
    xt, wt = torch.ones(shape, device="cuda"), torch.ones((64, 64, 3, 3), device="cuda")

    def theirs() -> None:
        torch.nn.functional.conv2d(xt, wt, padding=1)

    def synchronize() -> None:
        handle.synchronize()
        torch.cuda.synchronize()

    def ours(algorithm: str | None) -> None:
        ops.convolution_forward(handle, 1.0, x, w, conv, 0.0, y, algorithm=algorithm)

    chosen, single, theirs_us = host_us_beside([lambda: ours(None), lambda: ours("implicit_gemm"), theirs], synchronize)
    yield Row("ops.convolution_forward, 3x3, 14 x 14 (in parts, joined)", chosen, "us", theirs_us, most=12)
    yield Row("ops.convolution_forward by implicit_gemm (whole)", single, "us", theirs_us, most=12)
    yield Row(
        "functional.conv2d",
        host_us(lambda: conv2d(x, w, padding=1), handle.synchronize),
        "us",
        theirs_us,
    )
    yield Row(
        "ops.activation_forward",
        host_us(lambda: ops.activation_forward(handle, RELU, 1.0, x, 0.0, y), handle.synchronize),
        "us",
        host_us(lambda: torch.relu(xt), torch.cuda.synchronize),
    )


def replays(handle: Handle, steps: int) -> Iterator[Row]:
    """Of captured programs of so many launches, which come to one, and step by step."""
    descriptor, calls = TensorDescriptor.packed((1, 64, 14, 14)), min(200, _IN_FLIGHT // steps)
    with handle.arena({"x": descriptor, "y": descriptor}) as arena, handle.tensor(descriptor) as other:
        arena["x"].assign(np.ones(descriptor.shape, np.float32))
        with handle.record() as program:
            for _ in range(steps):
                ops.activation_forward(handle, RELU, 1.0, arena["x"], 0.0, arena["y"])
        captured = program.capture()
        yield Row(f"replay of {steps} launches", host_us(captured.run, handle.synchronize, calls), "us", most=12)
        captured.close()
        by_steps = host_us(program.run, handle.synchronize, calls=-(-calls // 10)) / steps
        yield Row(f"step by step, each of {steps} launches", by_steps, "us")
        with handle.record() as program:
            for _ in range(steps - 1):
                ops.activation_forward(handle, RELU, 1.0, arena["x"], 0.0, arena["x"])
            ops.activation_forward(handle, RELU, 1.0, arena["x"], 0.0, arena["y"])
        captured = program.capture()
        moves: list[dict[Span, Span]] = [{arena["y"]: other}, {arena["y"]: arena["y"]}]
        ways = itertools.cycle(moves)

        def moved() -> None:
            captured.move(next(ways))
            captured.run()

        yield Row(f"replay of {steps} launches into another output", host_us(moved, handle.synchronize, calls), "us")
        captured.close()


def _plans(handle: Handle) -> Iterator[Row]:
    for (dtype, layout), direction, geometry in itertools.product(_PLANNED_OPERANDS, Direction, _PLANNED):
        taps, stride, extent = geometry
        plan = partial(_plan_ms, handle, direction, taps, stride, extent, dtype=dtype, layout=layout)
        for channels in range(64, 129, 8):
            plan(channels)  # loads the kernels that are chosen in this range
        milliseconds = statistics.median(map(plan, range(65, 128, 2)))
        strided = f", stride {stride}" if stride > 1 else ""
        operands = "" if dtype is DType.FLOAT32 else f", {dtype.value}, {layout.value}"
        what = f"{direction.value} {taps}x{taps}{strided}, {extent} x {extent}{operands}"
        yield Row(f"first plan of a convolution, {what}", milliseconds, "ms", most=1)


def _plan_ms(
    handle: Handle,
    direction: Direction,
    taps: int,
    stride: int,
    extent: int,
    channels: int,
    *,
    dtype: DType,
    layout: Layout,
) -> float:
    x = TensorDescriptor.packed((8, channels, extent, extent), dtype, layout)
    w = TensorDescriptor.packed((128, channels, taps, taps), dtype, layout)
    conv = ConvolutionDescriptor.make(stride=stride, padding=taps // 2)
    y = TensorDescriptor.packed(conv.output_shape(x.shape, w.shape), dtype, layout)
    started = time.perf_counter()
    handle.plan(ConvolutionProblem(direction, x, w, y, conv))
    return (time.perf_counter() - started) * 1e3


def _import_seconds() -> float:
    def once() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import dnncore"], check=True)
        return time.perf_counter() - started

    return statistics.median(once() for _ in range(5))
