"""Which addresses the operations of a training step meet, by a model of PyTorch's allocator, on any machine, without a GPU.

    python -m benchmarks.addresses [--nets resnet50 alexnet] [--layouts NCHW] [--batch 64] [--ways converted] [--steps 30]

Launches that come again at the same addresses, or nearly, are replayed (`dnncore.cuda.runtime.replays`), so how many are depends on
whether the allocator hands out in a step what it did in an earlier one. A net takes steps on PyTorch's meta device as in
`benchmarks.enqueuing`, with loss and optimizer, under autocast in fp16 or without. Each tensor that PyTorch or we make there has
memory of a model of its CUDA allocator, as long as it lives. What fragments that before, or is allocated beside a step, may lead to
other cycles.
"""

from __future__ import annotations

import argparse
import weakref
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dnncore.torch
from benchmarks.enqueuing import WAYS, launching_nothing
from benchmarks.twins import twin

__all__ = ["Allocator", "Block", "Replayed", "replayed_in_steps"]

_FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
_MIB = 1 << 20


@dataclass(eq=False)
class Block:
    """Memory in a segment, between its neighbours there. Mutable.

    Args:
        address: Where it begins.
        nbytes: Of it.
        is_small: In which of the two pools it is.
        before: The block that ends where it begins; None at the segment's beginning.
        behind: The one that begins where it ends.
        is_free: Whether it is nobody's.
    """

    address: int
    nbytes: int
    is_small: bool
    before: Block | None = None
    behind: Block | None = None
    is_free: bool = False


class Allocator:
    """PyTorch's caching allocator of one stream, with as much memory as it wants. Mutable.

    The smallest free block that is large enough is taken, of equal ones that with the lowest address; what is left is cut off if it
    is worth it, and joined with its free neighbours when it comes back. Small tensors have segments of their own.

    Source: c10/cuda/CUDACachingAllocator.cpp, its constants and rules in words.
    """

    def __init__(self) -> None:
        self._free: dict[bool, list[tuple[int, int, Block]]] = {False: [], True: []}
        self._end = 1 << 40
        self.num_segments = 0

    def take(self, nbytes: int) -> Block:
        """A block of at least so many bytes."""
        size = max(-(-nbytes // 512), 1) * 512
        is_small = size <= _MIB
        free = self._free[is_small]
        place = bisect_left(free, (size, 0))
        block = free.pop(place)[-1] if place < len(free) else self._segment(size, is_small)
        left = block.nbytes - size
        if left >= 512 if is_small else left > _MIB:
            rest = Block(block.address + size, left, is_small, block, block.behind)
            if block.behind is not None:
                block.behind.before = rest
            block.behind, block.nbytes = rest, size
            self._put(rest)
        block.is_free = False
        return block

    def give_back(self, block: Block) -> None:
        """Let others have a block."""
        before, behind = block.before, block.behind
        if behind is not None and behind.is_free:
            self._free[behind.is_small].remove((behind.nbytes, behind.address, behind))
            self._join(block, behind)
        if before is not None and before.is_free:
            self._free[before.is_small].remove((before.nbytes, before.address, before))
            self._join(before, block)
            block = before
        self._put(block)

    @staticmethod
    def _join(block: Block, behind: Block) -> None:
        block.nbytes += behind.nbytes
        block.behind = behind.behind
        if behind.behind is not None:
            behind.behind.before = block

    def _put(self, block: Block) -> None:
        block.is_free = True
        insort(self._free[block.is_small], (block.nbytes, block.address, block))

    def _segment(self, size: int, is_small: bool) -> Block:
        nbytes = 2 * _MIB if is_small else 20 * _MIB if size < 10 * _MIB else -(-size // (2 * _MIB)) * 2 * _MIB
        block = Block(self._end, nbytes, is_small)
        self._end += nbytes + 2 * _MIB  # apart: blocks of two segments are not joined
        self.num_segments += 1
        return block


class _Memory(TorchDispatchMode):  # type: ignore[misc]
    """Gives memory to what is made on the meta device while this mode is on. Mutable."""

    def __init__(self) -> None:
        super().__init__()
        self._allocator = Allocator()
        self._blocks: dict[int, Block] = {}
        self._tensors: Counter[int] = Counter()
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As without it."""
        results = function(*args, **(kwargs or {}))
        for each in results if isinstance(results, tuple | list) else (results,):
            if isinstance(each, torch.Tensor) and each.device.type == "meta":
                self.address(each)
        return results

    def address(self, tensor: torch.Tensor) -> int:
        """Where a tensor is; one that is new is given memory, unless it is a view of what has some."""
        storage = tensor.untyped_storage()
        of = storage._cdata
        if id(tensor) not in self._known:
            if of not in self._blocks:
                self._blocks[of] = self._allocator.take(storage.nbytes())
            self._known.add(id(tensor))
            self._tensors[of] += 1
            weakref.finalize(tensor, self._forget, id(tensor), of)
        offset: int = tensor.storage_offset() * tensor.element_size()
        return self._blocks[of].address + offset

    def _forget(self, tensor: int, of: int) -> None:
        self._known.remove(tensor)
        self._tensors[of] -= 1
        if not self._tensors[of]:
            del self._tensors[of]
            self._allocator.give_back(self._blocks.pop(of))


@dataclass(frozen=True)
class Replayed:
    """Of a step. Immutable.

    Args:
        launches: Of kernels, by themselves or in graphs.
        in_graphs: Of these, those in graphs.
        graphs: That were launched.
    """

    launches: int
    in_graphs: int
    graphs: int


def _step(net: nn.Module, batch: int, layout: str, autocast: bool, memory: _Memory) -> Callable[[], torch.Tensor]:
    """As `benchmarks.steps.training_step`, on the meta device."""
    net = net.to("meta").to(memory_format=_FORMATS[layout]).train()
    x = torch.empty(batch, 3, 224, 224, device="meta").to(memory_format=_FORMATS[layout])
    labels = torch.empty(batch, dtype=torch.int64, device="meta")
    scale = torch.ones((), device="meta")
    for tensor in (*net.parameters(), *net.buffers(), x, labels, scale):
        memory.address(tensor)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, foreach=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            outputs = net(x)
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        loss: torch.Tensor = nn.functional.cross_entropy(logits.float(), labels)
        (loss * scale).backward()
        optimizer.step()
        return loss.detach()

    return step


def replayed_in_steps(
    nets: Sequence[nn.Module],
    batch: int,
    layout: str,
    steps: int,
    *,
    autocast: bool = True,
) -> list[list[Replayed]]:
    """What each step of several nets that take theirs in turn replays; a net of PyTorch's own launches nothing of ours."""
    memory = _Memory()
    found: list[list[Replayed]] = [[] for _ in nets]
    with launching_nothing(address=memory.address) as driven:
        taken = [_step(net, batch, layout, autocast, memory) for net in nets]
        losses: list[torch.Tensor | None] = [None] * len(nets)
        with memory:
            for _ in range(steps):
                for which, step in enumerate(taken):
                    alone, in_graphs, graphs = driven.alone, driven.in_graphs, driven.graphs
                    losses[which] = step()  # kept until the next one, as a loop that prints it does
                    in_graphs = driven.in_graphs - in_graphs
                    found[which].append(Replayed(driven.alone - alone + in_graphs, in_graphs, driven.graphs - graphs))
        del losses
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=("resnet50", "alexnet"))
    parser.add_argument("--layouts", nargs="+", default=("NCHW",), choices=_FORMATS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--ways", nargs="+", default=("converted",), choices=WAYS)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--in-turn", action="store_true", help="with steps of PyTorch's own net")
    parser.add_argument("--float32", action="store_true", help="without autocast")
    arguments = parser.parse_args()
    for name in arguments.nets:
        for layout in arguments.layouts:
            for way in arguments.ways:
                nets = [dnncore.torch.convert(twin(name), fuse=WAYS[way]).model]
                if arguments.in_turn:
                    nets.append(twin(name))
                steps, *_ = replayed_in_steps(
                    nets, arguments.batch, layout, arguments.steps, autocast=not arguments.float32
                )
                shares = " ".join(f"{100 * step.in_graphs // step.launches}" for step in steps)
                last = steps[-1]
                print(f"{name} {layout} {way}: of {last.launches} launches {last.in_graphs} in {last.graphs} graphs")
                print(f"  percent, step by step: {shares}", flush=True)


if __name__ == "__main__":
    main()
