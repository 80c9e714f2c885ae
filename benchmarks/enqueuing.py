"""What a training step of torchvision's nets costs the host in front of its launches, on any machine, without a GPU.

    python -m benchmarks.enqueuing [--nets resnet50 alexnet] [--layouts NHWC] [--batch 64] [--ways converted fused] [--profile]

The nets are converted and take steps on PyTorch's meta device, under autocast in fp16, as in `benchmarks.launches`: operations are
planned for an H200 and bound as on one, down to a driver that counts a launch and returns. What is timed is everything in front of
it: modules, autograd, look-ups, results, and what writes the launches' parameters: processor time of forward and backward, medians
of steps that the nets take in turn. Left out are the driver's own time, of which an estimate is added in the last column, what
allocations on a device take longer than forms alone, the loss and the optimizer. PyTorch's own operations run some Python of its
meta device: what is compared is nets before and after a change, above all such whose layers are ours.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import gc
import pstats
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import dnncore.torch
from benchmarks.twins import twin
from dnncore.backend import Address, Enqueue, Stream, Wired
from dnncore.cuda.absent import AbsentDevice
from dnncore.cuda.calls import joined
from dnncore.cuda.runtime import binder, driver, driver_launch, driver_tensor_map
from dnncore.cuda.tensor_map import TENSOR_MAP_BYTES
from dnncore.cuda.unit import Unit
from dnncore.figures import H200
from dnncore.handle import Handle
from dnncore.torch import bridge

__all__ = ["Cost", "cost_of_steps", "launching_nothing"]

_FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
_LAUNCH_US = 3.9
"""A launch through cuda-bindings with a prepared parameter block, as it was measured on an H200 host."""


@dataclass(frozen=True)
class Cost:
    """Of a training step: medians. Immutable.

    Args:
        forward_ms: Processor time.
        backward_ms: Likewise.
        launches: Of ours.
    """

    forward_ms: float
    backward_ms: float
    launches: int


class _NoDriver:
    """What binding and launching ask cuda-bindings for. Mutable.

    Attributes:
        launches: How many there have been.
    """

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUstream = ctypes.c_void_p
    CUlaunchConfig = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=0)

    def __init__(self) -> None:
        done = (0,)
        self.launches = 0

        def launch(*_arguments: object) -> tuple[int]:
            self.launches += 1
            return done

        self.cuLaunchKernel = self.cuLaunchKernelEx = self.cuMemsetD8Async = launch

    def cuCtxGetCurrent(self) -> tuple[int, int]:  # noqa: N802 (the driver's name)
        """None."""
        return 0, 0

    def CUlaunchAttribute(self) -> SimpleNamespace:  # noqa: N802 (the driver's name)
        """One to be filled in."""
        return SimpleNamespace(value=SimpleNamespace())


class _Kernels:
    def function(self, unit: Unit, shared_bytes: int = 0) -> Any:  # noqa: ARG002 (as `Kernels` has it)
        return unit


class _NullDevice(AbsentDevice):
    """One that is not there, on which launches are bound all the same. Owned by one thread."""

    def wire(self, parts: Sequence[Wired], stream: Stream, scratch_bytes: int = 0) -> Enqueue:  # noqa: ARG002 (there is one)
        """As of a device that is there."""
        context: Any = SimpleNamespace(forked=False, handle=0)
        queue: Any = SimpleNamespace(handle=0)
        return binder.wire(joined(parts, scratch_bytes), _Kernels(), context, queue)

    def copy_to_device(self, stream: Stream, destination: Address, source: np.ndarray) -> None:
        """Nothing reads it."""


@contextmanager
def launching_nothing() -> Iterator[Callable[[], int]]:
    """Let operations of this thread on PyTorch's meta device be planned and bound for an H200, and launched nowhere.

    Yields:
        What gives the number of launches so far.
    """
    nothing, thread = _NoDriver(), bridge._thread
    with (
        Handle(_NullDevice(H200)) as handle,
        mock.patch.object(driver, "bindings", return_value=nothing),
        mock.patch.object(driver_launch, "bindings", return_value=nothing),
        mock.patch.object(driver_tensor_map, "tensor_map_encoder", return_value=lambda _: bytes(TENSOR_MAP_BYTES)),
    ):
        door = bridge.Door(torch.device("meta"), handle)

        def prepare(key: Any, _place: Any, operation: Any, settings: Any, tensors: Any) -> Any:
            run = thread.seen[key] = door.prepare(operation, settings, tensors)
            return run

        thread.prepare = prepare  # type: ignore[method-assign, assignment]
        try:
            yield lambda: nothing.launches
        finally:
            del thread.prepare
            thread.seen.clear()
            thread.recent.clear()


def _halves(net: nn.Module, batch: int, layout: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """The forward and the backward of a step of a net on images [batch, 3, 224, 224]."""
    form = _FORMATS[layout]
    net = net.to("meta").to(memory_format=form).train()
    # In 16 bits already: to cast it is one launch of PyTorch's, for which its meta device runs much Python.
    x = torch.empty(batch, 3, 224, 224, dtype=torch.float16, device="meta").to(memory_format=form)
    parameters = list(net.parameters())

    def forward() -> Any:
        with torch.autocast("cpu", torch.float16):  # to which a tensor on no device belongs
            outputs = net(x)
        return outputs if isinstance(outputs, torch.Tensor) else outputs[0]

    def backward(logits: Any) -> None:
        logits.backward(logits)
        for parameter in parameters:
            parameter.grad = None

    return forward, backward


def cost_of_steps(nets: Sequence[nn.Module], batch: int, layout: str, steps: int, warm_up: int = 5) -> list[Cost]:
    """What each of several nets' steps takes, of so many in turn."""
    with launching_nothing() as launches:
        halves = [_halves(net, batch, layout) for net in nets]
        times: list[list[tuple[float, float]]] = [[] for _ in nets]
        counts = [0] * len(nets)
        gc.collect()
        gc.disable()  # what a collection takes is no part of the net that it falls on
        for number in range(warm_up + steps):
            for which, (forward, backward) in enumerate(halves):
                before, start = launches(), time.process_time()
                logits = forward()
                middle = time.process_time()
                backward(logits)
                end = time.process_time()
                counts[which] = launches() - before
                if number >= warm_up:
                    times[which].append((middle - start, end - middle))
        gc.enable()
    return [
        Cost(
            statistics.median(forward for forward, _ in of_net) * 1e3,
            statistics.median(backward for _, backward in of_net) * 1e3,
            count,
        )
        for of_net, count in zip(times, counts, strict=True)
    ]


def _profile(net: nn.Module, batch: int, layout: str, steps: int) -> None:
    with launching_nothing():
        forward, backward = _halves(net, batch, layout)
        for _ in range(5):
            backward(forward())
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(steps):
            backward(forward())
        profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=("resnet50", "alexnet"))
    parser.add_argument("--layouts", nargs="+", default=("NHWC",), choices=_FORMATS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--ways", nargs="+", default=("converted", "fused"), choices=("converted", "fused"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--launch-us", type=float, default=_LAUNCH_US, help="the driver's part of a launch")
    parser.add_argument(
        "--profile", action="store_true", help="where the time goes, by functions, in place of how much it is"
    )
    arguments = parser.parse_args()
    for name in arguments.nets:
        for layout in arguments.layouts:
            nets = [dnncore.torch.convert(twin(name), fuse=way == "fused").model for way in arguments.ways]
            if arguments.profile:
                for net in nets:
                    _profile(net, arguments.batch, layout, arguments.steps)
                continue
            costs = cost_of_steps(nets, arguments.batch, layout, arguments.steps)
            for way, cost in zip(arguments.ways, costs, strict=True):
                ours_ms = cost.forward_ms + cost.backward_ms
                with_driver_ms = ours_ms + cost.launches * arguments.launch_us / 1e3
                parts = f"forward {cost.forward_ms:6.2f}, backward {cost.backward_ms:6.2f}, both {ours_ms:6.2f} ms"
                driver_part = (
                    f"{cost.launches} launches, with {arguments.launch_us} us for each {with_driver_ms:6.2f} ms"
                )
                print(f"{name} {layout} {way:10s} {parts}; {driver_part}", flush=True)


if __name__ == "__main__":
    main()
