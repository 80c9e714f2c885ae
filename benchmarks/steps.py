"""Training steps of torchvision's nets in PyTorch and after `convert`, which fuses and does not: wall, kernels and host in one run.

    python -m benchmarks.steps --out benchmarks/results [--nets resnet50 ...] [--batches 128] [--layouts NHWC NCHW]

Under autocast in fp16, 224 x 224, SGD with momentum; the contestants take steps in turn. The host's time is that in which a step is
enqueued on an idle device. Unscaling is left out: it waits for the device, and would hide what the host takes.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dnncore.torch
from benchmarks.document import Document
from benchmarks.twins import twin

__all__ = ["captured_step", "enqueue_ms", "kernel_ms", "training_step", "wall_ms", "warm_up"]

_ROUNDS = 7
_CALLS = 5
_WARM_UP = 5
_FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


def training_step(
    net: nn.Module, batch: int, autocast: bool = True, memory_format: torch.memory_format = torch.contiguous_format
) -> Callable[[], torch.Tensor]:
    """What makes a step of a net on the device, on the same images every time, and returns its loss."""
    x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=memory_format)
    labels = torch.randint(1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cuda", enabled=autocast)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=autocast):
            outputs = net(x)
            loss: torch.Tensor = loss_of(outputs if isinstance(outputs, torch.Tensor) else outputs[0], labels)
        scaler.scale(loss).backward()
        optimizer.step()
        return loss.detach()

    return step


def captured_step(net: nn.Module, batch: int) -> Callable[[], torch.Tensor]:
    """`training_step` under autocast of a net on the device whose forward and backward are CUDA graphs, as PyTorch makes them."""
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    gc.collect()  # graphs of nets that are gone: to destroy one while another is captured ends the capture
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        captured: nn.Module = torch.cuda.make_graphed_callables(net, (x,))
    return training_step(captured, batch)


def warm_up(call: Callable[[], Any]) -> None:
    """Have a call planned, searched for and replayed before it is timed."""
    for _ in range(_WARM_UP):
        call()


def wall_ms(contestants: Sequence[Callable[[], Any]], calls: int = _CALLS) -> list[float]:
    """Median milliseconds of the wall for one of so many calls, of several in turn."""

    def sample(call: Callable[[], Any]) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / calls * 1e3

    for call in contestants:
        warm_up(call)
    torch.cuda.synchronize()
    rounds = [[sample(call) for call in contestants] for _ in range(_ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def enqueue_ms(call: Callable[[], Any]) -> float:
    """Median milliseconds in which a call returns that starts on an idle device."""

    def sample() -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3

    return statistics.median(sample() for _ in range(_ROUNDS))


def kernel_ms(call: Callable[[], Any]) -> float:
    """Milliseconds that the kernels of one call take together.

    By PyTorch's profiler, after which the driver's calls take longer in this process: to be called when all else is timed.
    """
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in profile.key_averages())) / 3e3


@dataclass(frozen=True)
class _Case:
    """A net, and what it is given. Immutable."""

    net: str
    batch: int
    layout: str

    def steps(self) -> dict[str, Callable[[], torch.Tensor]]:
        """A step of each contestant, PyTorch's first; all have the same weights."""
        torch.manual_seed(0)
        theirs = twin(self.net)
        nets = {
            "PyTorch": theirs,
            "layer by layer": dnncore.torch.convert(twin(self.net), fuse=False).model,
            "converted": dnncore.torch.convert(twin(self.net)).model,
        }
        steps = {}
        for how, net in nets.items():
            net.load_state_dict(theirs.state_dict())
            placed = net.cuda().to(memory_format=_FORMATS[self.layout]).train()
            steps[how] = training_step(placed, self.batch, memory_format=_FORMATS[self.layout])
        return steps


def _timed(case: _Case) -> list[dict[str, Any]]:
    steps = case.steps()
    walls = wall_ms(list(steps.values()))
    return [
        {
            **asdict(case),
            "how": how,
            "ms": wall,
            "images_per_s": case.batch / wall * 1e3,
            "ratio": walls[0] / wall,
            "host_ms": enqueue_ms(step),
        }
        for (how, step), wall in zip(steps.items(), walls, strict=True)
    ]


def _line(row: Mapping[str, Any]) -> str:
    wall = f"{row['ms']:7.2f} ms = {row['images_per_s']:6.0f} images/s, {row['ratio']:.2f} times PyTorch"
    kernels = f", kernels {row['kernels_ms']:6.2f}" if "kernels_ms" in row else ""
    return f"{row['net']:10s} {row['batch']:4d} {row['layout']} {row['how']:14s} {wall}; host {row['host_ms']:6.2f}{kernels} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON file")
    parser.add_argument("--nets", nargs="+", default=("resnet50", "googlenet", "alexnet"))
    parser.add_argument("--batches", nargs="+", type=int, default=[128])
    parser.add_argument("--layouts", nargs="+", default=["NHWC"], choices=_FORMATS)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    document = Document(arguments.out / "steps.json", ("net", "batch", "layout", "how"))
    cases = [_Case(*each) for each in itertools.product(arguments.nets, arguments.batches, arguments.layouts)]
    timed = []
    for case in cases:
        timed.append(_timed(case))
        for row in timed[-1]:
            print(_line(row), flush=True)
        torch.cuda.empty_cache()
    print("kernels, by the profiler, which slows the process down from here on", flush=True)
    for case, rows in zip(cases, timed, strict=True):
        for row, step in zip(rows, case.steps().values(), strict=True):
            warm_up(step)
            row["kernels_ms"] = kernel_ms(step)
            document.add([row])
            print(_line(row), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
