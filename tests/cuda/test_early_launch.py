"""Kernels that begin while the one before them runs: in a stream and in a graph they see what that wrote, and must wait for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, Handle, TensorDescriptor, ops
from dnncore.backend import Bound
from dnncore.cuda import device
from dnncore.cuda.calls import Calls, ConstantSlot, KernelCall, Memset, Place, Slot, described, rewired
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.unit import Unit
from tests.conftest import CUDA_DEVICES
from tests.cuda.test_context import PRELUDE, run_python

THREADS = 64
SOURCE = """#include "dnncore/ptx/early_launch.cuh"
struct EarlyParams { const int* from; int* to; int constant; };
extern "C" __global__ void early_step(const __grid_constant__ EarlyParams params) {
  dnncore::let_next_start();
  dnncore::wait_for_previous();
  params.to[threadIdx.x] = params.from[blockDim.x - 1 - threadIdx.x] + 1;
}
extern "C" __global__ void told_step(const __grid_constant__ EarlyParams params) {
  params.to[threadIdx.x] = params.constant;
}
extern "C" __global__ void hasty_step(const __grid_constant__ EarlyParams params) {
  params.to[threadIdx.x] = params.from[blockDim.x - 1 - threadIdx.x] + 1;
}
"""


def steps(entry: str, *, starts_early: bool = True) -> Calls:
    """0 into the first operand, then 1 into the second one, 2 into the first, 3 into the second."""
    unit = Unit(SOURCE, entry)

    def step(source: int, target: int) -> KernelCall:
        slots = Slot(0, Place(source)), Slot(8, Place(target))
        constants = (ConstantSlot(16, Place(source)),)
        return KernelCall(
            unit, (1, 1, 1), (THREADS, 1, 1), bytes(24), slots, starts_early=starts_early, constants=constants
        )

    return (Memset(Place(0), 0, 4 * THREADS), step(0, 1), step(1, 0), step(0, 1))


def run(gpu: CudaDevice, calls: Calls, *, in_graph: bool, constants: frozenset[int] = frozenset()) -> np.ndarray:
    """What the second operand holds at the end."""
    memories, stream = [gpu.allocate(4 * THREADS) for _ in range(2)], gpu.create_stream()
    addresses = [memory.at(0) for memory in memories]
    if in_graph:
        graph = gpu.capture([Bound(calls, 1.0, 0.0, addresses, constants)])
        for _ in range(2):
            graph.launch(stream)
    else:
        gpu.bind(calls)(stream, 1.0, 0.0, addresses)
    found = np.zeros(THREADS, np.int32)
    gpu.copy_to_host(stream, found, addresses[1])
    stream.synchronize()
    if in_graph:
        graph.close()
    stream.close()
    for memory in memories:
        memory.close()
    return found


@pytest.fixture
def gpu() -> Iterator[CudaDevice]:
    opened = device.open_device(0)
    yield opened
    opened.close()


def test_a_description_says_which_kernels_start_early() -> None:
    (_, line, *_), (_, plain, *_) = described(steps("early_step")), described(steps("early_step", starts_early=False))
    assert line == f"{plain}, starts early"


@pytest.mark.cuda
@pytest.mark.parametrize("in_graph", [False, True], ids=["stream", "graph"])
def test_a_chain_of_early_kernels_computes_what_one_after_the_other_would(gpu: CudaDevice, in_graph: bool) -> None:
    assert (run(gpu, steps("early_step"), in_graph=in_graph) == 3).all()


@pytest.mark.cuda
def test_a_kernel_is_told_of_constants_in_a_graph_alone(gpu: CudaDevice) -> None:
    told = steps("told_step")
    assert (run(gpu, told, in_graph=True, constants=frozenset({0})) == 1).all()
    assert (run(gpu, told, in_graph=True, constants=frozenset({1})) == 0).all()
    assert (run(gpu, told, in_graph=False) == 0).all()
    moved = rewired(told, (Place(1), Place(0)))  # and back: what was the first operand is the second
    assert (run(gpu, rewired(moved, (Place(1), Place(0))), in_graph=True, constants=frozenset({0})) == 1).all()
    assert (run(gpu, moved + told[-1:], in_graph=True, constants=frozenset({1})) == 0).all()


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("algorithm", "kernel", "channels", "w"),
    [
        ("implicit_gemm_wgmma", "_64x64_by_", 72, (8, 72, 3, 3)),
        ("implicit_gemm_wgmma_rows", "_rows_", 3, (8, 3, 3, 3)),
        ("depthwise", "_tiles_channels_", 16, (16, 1, 3, 3)),
    ],
)
def test_filters_are_read_early_unless_the_graph_writes_them(
    algorithm: str, kernel: str, channels: int, w: tuple[int, ...]
) -> None:
    """A kernel right behind the one that writes its filters waits: the emulator would report that it does not."""
    conv = ConvolutionDescriptor.make(padding=1, groups=channels if w[1] == 1 else 1)
    rng = np.random.default_rng(0)
    images, weights = (rng.uniform(-1, 1, shape).astype(np.float16) for shape in ((1, channels, 5, 6), w))
    with Handle(CUDA_DEVICES[0]) as own:
        x, given = own.upload(images, "NHWC"), own.upload(weights, "NHWC")
        written = own.tensor(given.descriptor)
        outputs = [own.tensor(TensorDescriptor.packed((1, w[0], 5, 6), "float16", "NHWC")) for _ in range(2)]
        with own.record() as program:
            ops.transform(own, -1.0, given, 0.0, written)
            for filters, y in zip((written, given), outputs, strict=True):
                ops.convolution_forward(own, 1.0, x, filters, conv, 0.0, y, algorithm=algorithm)
        assert program.describe().count(kernel) == 2
        captured = program.capture()
        for _ in range(2):
            for tensor in (written, *outputs):
                tensor.assign(np.full(tensor.shape, np.nan, np.float16))
            captured.run()
            first, second = (y.numpy() for y in outputs)
            assert np.isfinite(first).all()
            np.testing.assert_array_equal(first, -second)


@pytest.mark.cuda
@pytest.mark.skipif("DNN_EMU_LIB" not in os.environ, reason="GPUs do not report races")
@pytest.mark.parametrize("in_graph", [False, True])
def test_the_emulator_reports_a_kernel_that_does_not_wait(in_graph: bool) -> None:
    child = run_python(
        f"{PRELUDE}from tests.cuda.test_early_launch import run, steps\n"
        f"run(device.open_device(0), steps('hasty_step'), in_graph={in_graph})\n"
    )
    assert child.returncode != 0
    assert "before griddepcontrol.wait" in child.stderr
