"""What a training step of torchvision's nets launches on an H200, counted on any machine: launches, tensors, estimated time.

    python -m benchmarks.launches [--nets resnet50 alexnet] [--layouts NCHW NHWC] [--batch 64] [--layer-by-layer] [--kernels]

The step is that of `benchmarks.steps`: the nets converted, under autocast in fp16, images of 224 x 224. It is taken on PyTorch's
meta device, where tensors have forms alone: each operation is planned for the figures of an H200, and what is counted are its
launches, but for those for operands at odd addresses, the tensors that it makes, and the scratch memory that the largest of them
takes, which all share. PyTorch's own launches are not counted, and estimates leave out what launches in a row gain or lose by each
other.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import dnncore.torch
from benchmarks.twins import twin
from dnncore.cuda.absent import AbsentDevice
from dnncore.cuda.calls import Calls, WhereAligned
from dnncore.figures import H200
from dnncore.handle import Handle
from dnncore.torch import bridge
from dnncore.torch.dtypes import TORCH_DTYPES
from dnncore.torch.operation import Composite, Operation

__all__ = ["Tally", "count_launches", "tally_step"]

_FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


@dataclass
class Tally:
    """What operations of one kind came to. Mutable.

    Attributes:
        calls: Of the operation.
        launches: Of all calls together.
        tensors: That they made.
        seconds: By estimate.
        scratch_bytes: Of the call that takes most.
        kinds: Of their launches, by the kernels' names.
    """

    calls: int = 0
    launches: int = 0
    tensors: int = 0
    seconds: float = 0.0
    scratch_bytes: int = 0
    kinds: Counter[tuple[str, ...]] = field(default_factory=Counter)


def _entries(calls: Calls) -> Iterator[str]:
    """Names of what is launched where every operand begins where its kernel wants it."""
    for call in calls:
        if isinstance(call, WhereAligned):
            yield from _entries(call.aligned)
        else:
            yield call.unit.entry if hasattr(call, "unit") else type(call).__name__.lower()


def count_launches(calls: Calls) -> int:
    """Of a plan."""
    return sum(1 for _ in _entries(calls))


@contextmanager
def _planning(handle: Handle, tallies: dict[str, Tally]) -> Iterator[None]:
    """Let operations of this thread be planned by a handle, counted, and computed nowhere: their results have forms alone."""

    def prepare(
        _key: Any,
        _place: Any,
        operation: Callable[..., Operation | Composite],
        settings: tuple[Any, ...],
        tensors: Sequence[torch.Tensor | None],
    ) -> Callable[[Sequence[torch.Tensor]], list[Any]]:
        described = operation(*settings, *(t if t is None else bridge._describe(t) for t in tensors))
        way = bridge.chosen_way(handle, described)
        plans = [handle.plan(step.problem) for step in way.steps]
        kernels = tuple(entry for plan in plans for entry in _entries(plan.work))
        seconds = sum(plan.offer.seconds for plan in plans)
        scratch_bytes = way.scratch_bytes + max(plan.workspace_bytes for plan in plans)
        name = f"{operation.__module__.rpartition('.')[2]}{operation.__name__}"

        def run(_tensors: Sequence[torch.Tensor]) -> list[Any]:
            tally = tallies[name]
            tally.calls += 1
            tally.launches += len(kernels)
            tally.tensors += len(way.results)
            tally.seconds += seconds
            tally.scratch_bytes = max(tally.scratch_bytes, scratch_bytes)
            tally.kinds[kernels] += 1
            made = [
                torch.empty_strided(each.shape, each.strides, dtype=TORCH_DTYPES[each.dtype], device="meta")
                for each in way.results
            ]
            return [*made, *way.notes]

        return run

    thread = bridge._thread
    thread.prepare = prepare  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del thread.prepare
        thread.seen.clear()
        thread.recent.clear()


def tally_step(net: nn.Module, batch: int, layout: str) -> dict[str, Tally]:
    """What a training step of a converted net on images [batch, 3, 224, 224] in a layout comes to, by operation."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    form = _FORMATS[layout]
    net = net.to("meta").to(memory_format=form).train()
    x = torch.empty(batch, 3, 224, 224, device="meta").to(memory_format=form)
    with Handle(AbsentDevice(H200)) as handle, _planning(handle, tallies):
        with torch.autocast("cpu", torch.float16):  # to which a tensor on no device belongs
            outputs = net(x)
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        logits.float().sum().backward()
    return dict(tallies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=("resnet50", "alexnet"))
    parser.add_argument("--layouts", nargs="+", default=tuple(_FORMATS), choices=_FORMATS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--layer-by-layer", action="store_true", help="as `convert(fuse=False)` makes them")
    parser.add_argument("--kernels", action="store_true", help="list the kernels")
    arguments = parser.parse_args()
    for name in arguments.nets:
        for layout in arguments.layouts:
            net = dnncore.torch.convert(twin(name), fuse=False if arguments.layer_by_layer else None).model
            tallies = tally_step(net, arguments.batch, layout)
            print(
                f"{name}, batch {arguments.batch}, {layout}: operations, launches, tensors, estimated ms, MB of scratch memory"
            )
            for operation, tally in sorted(tallies.items()):
                _print(operation, tally)
                if arguments.kernels:
                    for kernels, times in tally.kinds.most_common():
                        print(f"    {times:3d} {', '.join(kernels)}")
            _print("all", _together(tallies.values()))


def _together(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.calls += tally.calls
        whole.launches += tally.launches
        whole.tensors += tally.tensors
        whole.seconds += tally.seconds
        whole.scratch_bytes = max(whole.scratch_bytes, tally.scratch_bytes)
    return whole


def _print(name: str, tally: Tally) -> None:
    counts = f"{tally.calls:4d} {tally.launches:5d} {tally.tensors:5d}"
    print(f"  {name:40s} {counts} {tally.seconds * 1e3:8.3f} {tally.scratch_bytes / 1e6:8.1f}")


if __name__ == "__main__":
    main()
