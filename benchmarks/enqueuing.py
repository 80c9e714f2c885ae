"""What a training step of torchvision's nets costs the host in front of its launches, on any machine, without a GPU.

    python -m benchmarks.enqueuing [--nets resnet50 alexnet] [--layouts NHWC] [--batch 64] [--ways converted] [--profile]

The nets are converted and take steps on PyTorch's meta device, under autocast in fp16, as in `benchmarks.launches`: operations are
planned for an H200 and bound as on one, down to a driver that counts a launch and returns. What is timed is everything in front of
it: modules, autograd, look-ups, results, and what writes the launches' parameters: processor time of forward and backward, medians
of steps that the nets take in turn. Left out are the driver's own time, of which an estimate is added in the last column, what
allocations on a device take longer than forms alone, the loss and the optimizer. PyTorch's own operations run some Python of its
meta device: what is compared is nets before and after a change, above all such whose layers are ours.

Tensors there all have the address 0: what may be replayed by a graph where addresses come again always is, as on a GPU once its
allocator has come into a cycle; `--launched` has every launch made one by one, as in the steps before.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

import dnncore.torch
from benchmarks.nowhere import NoDriver, handle_nowhere
from benchmarks.twins import twin
from dnncore.backend import Address
from dnncore.torch import bridge

__all__ = ["WAYS", "Cost", "cost_of_steps", "launching_nothing"]

WAYS: dict[str, bool | None] = {"layer-by-layer": False, "converted": None}
"""What `convert` is asked for, to fuse nothing or what it fuses by itself."""

_FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
_LAUNCH_US = 3.9
"""A launch through cuda-bindings with a prepared parameter block, as it was measured on an H200 host."""

_GRAPH_US = 4.4
"""A launch of a graph of 175 kernels, likewise, with the Python around it."""


@dataclass(frozen=True)
class Cost:
    """Of a training step: medians. Immutable.

    Args:
        forward_ms: Processor time.
        backward_ms: Likewise.
        launches: Of kernels, by themselves or in graphs.
        graphs: That were launched.
        alone: Kernels that were launched by themselves.
    """

    forward_ms: float
    backward_ms: float
    launches: int
    graphs: int
    alone: int


@contextmanager
def launching_nothing(
    one_by_one: bool = False, address: Callable[[torch.Tensor], Address] | None = None
) -> Iterator[NoDriver]:
    """Let operations of this thread on PyTorch's meta device be planned and bound for an H200, and launched nowhere.

    Args:
        one_by_one: Whether none of them may be replayed by a graph.
        address: Where a tensor is; None for 0.

    Yields:
        What counts launches.
    """
    thread = bridge._thread
    with (
        handle_nowhere() as (handle, nothing),
        mock.patch.object(bridge, "_capture_on", return_value=lambda: one_by_one),
    ):
        door = bridge.Door(torch.device("meta"), handle)
        if address is not None:
            door._address = address

        def prepare(key: Any, _place: Any, operation: Any, settings: Any, tensors: Any) -> Any:
            run = thread.seen[key] = door.prepare(operation, settings, tensors)
            return run

        thread.prepare = prepare  # type: ignore[method-assign, assignment]
        try:
            yield nothing
        finally:
            del thread.prepare
            thread.seen.clear()
            thread.recent.clear()


def _halves(net: nn.Module, batch: int, layout: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """The forward and the backward of a step of a net on images [batch, 3, 224, 224]."""
    form = _FORMATS[layout]
    net = net.to("meta").to(memory_format=form).train()
    # In 16 bits already: unless a chain casts it, that is one launch of PyTorch's, for which its meta device runs much Python.
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


def cost_of_steps(
    nets: Sequence[nn.Module], batch: int, layout: str, steps: int, warm_up: int = 5, one_by_one: bool = False
) -> list[Cost]:
    """What each of several nets' steps takes, of so many in turn; launches are those of the last."""
    with launching_nothing(one_by_one) as driven:
        halves = [_halves(net, batch, layout) for net in nets]
        times: list[list[tuple[float, float]]] = [[] for _ in nets]
        counts = [(0, 0, 0)] * len(nets)
        gc.collect()
        gc.disable()  # what a collection takes is no part of the net that it falls on
        for number in range(warm_up + steps):
            for which, (forward, backward) in enumerate(halves):
                before, start = (driven.alone, driven.graphs, driven.in_graphs), time.process_time()
                logits = forward()
                middle = time.process_time()
                backward(logits)
                end = time.process_time()
                alone, graphs, in_graphs = before
                counts[which] = driven.alone - alone, driven.graphs - graphs, driven.in_graphs - in_graphs
                if number >= warm_up:
                    times[which].append((middle - start, end - middle))
        gc.enable()
    return [
        Cost(
            statistics.median(forward for forward, _ in of_net) * 1e3,
            statistics.median(backward for _, backward in of_net) * 1e3,
            alone + in_graphs,
            graphs,
            alone,
        )
        for of_net, (alone, graphs, in_graphs) in zip(times, counts, strict=True)
    ]


def _profile(net: nn.Module, batch: int, layout: str, steps: int, one_by_one: bool) -> None:
    with launching_nothing(one_by_one):
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
    parser.add_argument("--ways", nargs="+", default=tuple(WAYS), choices=WAYS)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--launch-us", type=float, default=_LAUNCH_US, help="the driver's part of a launch")
    parser.add_argument("--graph-us", type=float, default=_GRAPH_US, help="that of a graph's")
    parser.add_argument("--launched", action="store_true", help="one by one: no graphs")
    parser.add_argument(
        "--profile", action="store_true", help="where the time goes, by functions, in place of how much it is"
    )
    arguments = parser.parse_args()
    for name in arguments.nets:
        for layout in arguments.layouts:
            nets = [dnncore.torch.convert(twin(name), fuse=WAYS[way]).model for way in arguments.ways]
            if arguments.profile:
                for net in nets:
                    _profile(net, arguments.batch, layout, arguments.steps, arguments.launched)
                continue
            costs = cost_of_steps(nets, arguments.batch, layout, arguments.steps, one_by_one=arguments.launched)
            for way, cost in zip(arguments.ways, costs, strict=True):
                ours_ms = cost.forward_ms + cost.backward_ms
                driver_us = cost.alone * arguments.launch_us + cost.graphs * arguments.graph_us
                parts = f"forward {cost.forward_ms:6.2f}, backward {cost.backward_ms:6.2f}, both {ours_ms:6.2f} ms"
                launches = f"{cost.launches} launches, {cost.launches - cost.alone} of them in {cost.graphs} graphs"
                print(
                    f"{name} {layout} {way:14s} {parts}; {launches}: with the driver's part {ours_ms + driver_us / 1e3:6.2f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
