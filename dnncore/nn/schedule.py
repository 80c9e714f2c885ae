"""How the nodes of a net are computed: by which algorithms, in how many parts of the batch, and where everything lies meanwhile.

An algorithm that takes scratch memory is often faster than one that takes none. Scratch memory is needed by one node at a time, so
it lies in the block of the values, where these leave room, and what does not fit there is computed otherwise:

    step      1 conv   2 pool   3 conv
    scratch   ####              ##########         from the beginning of the block
    values      ======================             above what is there while they live
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dnncore.addresses import Addresses
from dnncore.errors import NotSupportedError
from dnncore.handle import Handle
from dnncore.nn.feeding import Feed, find_feeds, with_room_for_parts
from dnncore.nn.graph import Graph, Node
from dnncore.nn.placement import Placement, place
from dnncore.plan import Plan
from dnncore.tensor import Tensor

__all__ = ["SPARE_BYTES", "TOLERANCE", "Computation", "Schedule", "lower", "schedule"]

SPARE_BYTES = 64 << 20
"""What a net may take beside its values, where their own block has no room: nothing that a device would miss."""

TOLERANCE = 0.01
"""Of the estimated time, what less memory may cost."""

_SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
"""How much of the scratch memory that the fastest algorithms want is tried, from none to all."""

_PARTS = (1, 2, 4, 8, 16, 32)
"""Into how many parts a batch may be cut."""

_ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class Computation:
    """How a node is computed. Immutable.

    Args:
        node: What.
        plans: Of its operations, in order.
        limit_bytes: Of scratch memory, by which they were chosen; None where there was none.
        parts: Into how many parts the batch is cut.
        feed: What makes a part of its first input before each part of it is computed; None where that lies there whole.
    """

    node: Node
    plans: tuple[Plan, ...]
    limit_bytes: int | None = None
    parts: int = 1
    feed: Feed | None = None

    @property
    def seconds(self) -> float:
        """Estimated time."""
        return sum(plan.offer.seconds for plan in self.plans)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory that the largest operation takes."""
        return max((plan.workspace_bytes for plan in self.plans), default=0)

    @property
    def algorithms(self) -> str:
        """Their names, each once; "-" for a view, which costs nothing."""
        return "+".join(dict.fromkeys(plan.algorithm for plan in self.plans)) or "-"


@dataclass(frozen=True)
class Schedule:
    """How a net is computed for a number of images. Immutable.

    Args:
        placement: Where values lie; scratch memory is at the beginning of their block.
        computations: Of every node, in their order.
    """

    placement: Placement
    computations: tuple[Computation, ...]

    @property
    def seconds(self) -> float:
        """Estimated time."""
        return sum(one.seconds for one in self.computations)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory of the node that takes most."""
        return max(one.scratch_bytes for one in self.computations)

    @property
    def operations(self) -> int:
        """How many there are; each is a launch or a few."""
        return sum(len(one.plans) for one in self.computations)

    def table(self) -> str:
        """A line for each node, and the sums."""
        rows = [
            (one.node.name, one.node.operator.kind, one.algorithms, f"{one.parts if one.plans else '-'}")
            for one in self.computations
        ]
        heads = ("layer", "operator", "algorithm", "parts")
        widths = [max(len(row[i]) for row in (*rows, heads)) for i in range(len(heads))]

        def line(row: tuple[str, ...], scratch: str, us: str) -> str:
            texts = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            return f"{'  '.join(texts)}  {scratch:>11}  {us:>8}"

        lines = [line(heads, "scratch B", "us")]
        lines += [
            line(row, str(one.scratch_bytes), f"{one.seconds * 1e6:.1f}")
            for row, one in zip(rows, self.computations, strict=True)
        ]
        memory = f"{self.placement.nbytes / 1e6:.1f} MB of values and scratch memory"
        return "\n".join([*lines, f"{self.operations} operations, {self.seconds * 1e3:.3f} ms estimated, {memory}"])


def lower(handle: Handle, computation: Computation, tensors: Mapping[str, Tensor]) -> None:
    """Call the operations of a node.

    Args:
        handle: Whose; it is recording.
        computation: How.
        tensors: By name.
    """
    node, preference = computation.node, handle.preference
    if computation.limit_bytes is not None:
        preference = replace(preference, workspace_limit_bytes=computation.limit_bytes)
    inputs = [None if name is None else tensors[name] for name in node.inputs]
    outputs = [tensors[name] for name in node.outputs]
    with handle.preferring(preference):
        if computation.parts == 1:
            node.operator.lower(handle, inputs, outputs)
            return
        batched, feed = node.operator.batched, computation.feed
        for begin, end in _cuts(outputs[0].shape[0], computation.parts):
            fed = None if feed is None else _feed(handle, feed.node, tensors, begin, end)
            operands = [
                fed if i == 0 and fed is not None else x if x is None or i not in batched else _rows(x, begin, end)
                for i, x in enumerate(inputs)
            ]
            node.operator.lower(handle, operands, [_rows(y, begin, end) for y in outputs])


def _feed(handle: Handle, node: Node, tensors: Mapping[str, Tensor], begin: int, end: int) -> Tensor:
    """Make some rows of a value that has room for a part."""
    given, *others = (None if name is None else tensors[name] for name in node.inputs)
    assert given is not None
    made = _rows(tensors[node.outputs[0]], 0, end - begin)
    node.operator.lower(handle, [_rows(given, begin, end), *others], [made])
    return made


def _cuts(rows: int, parts: int) -> list[tuple[int, int]]:
    ends = [rows * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(ends))


def _rows(tensor: Tensor, begin: int, end: int) -> Tensor:
    descriptor = tensor.descriptor
    return tensor.view(descriptor.with_shape((end - begin, *tensor.shape[1:])), begin * descriptor.strides[0])


class _Planner:
    """Plans the nodes of a net over addresses that stand for its values."""

    def __init__(self, graph: Graph, handle: Handle, placement: Placement, batch: int) -> None:
        self._handle = handle
        self._batch = batch
        self._next = _ALIGNMENT_BYTES
        self._memory: dict[str, Addresses] = {}
        sizes = {name: one.nbytes for name, one in placement.lifetimes.items()}
        sizes |= {one.name: graph.descriptor(one.name, one.spec).nbytes for one in graph.constants}
        self._tensors = {
            name: Tensor(handle, one.descriptor, self._block(one.storage, sizes), one.offset_bytes, owned=False)
            for name, one in placement.places.items()
        }

    def _block(self, storage: str, sizes: Mapping[str, int]) -> Addresses:
        if storage not in self._memory:
            self._memory[storage] = Addresses(self._next, sizes[storage])
            self._next += -(-sizes[storage] // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return self._memory[storage]

    def plan(self, node: Node, limit_bytes: int | None = None, parts: int = 1, feed: Feed | None = None) -> Computation:
        """Plan a node's operations.

        Raises:
            NotSupportedError: no algorithm keeps to the limit.
        """
        wanted = Computation(node, (), limit_bytes, parts, feed)
        with self._handle.record() as program:
            lower(self._handle, wanted, self._tensors)
        return replace(wanted, plans=tuple(step.plan for step in program.steps))

    def within(self, computation: Computation, limit_bytes: int) -> Computation:
        """The fastest way to compute a node that takes no more scratch memory; where there is none, the one that takes least."""
        if computation.scratch_bytes <= limit_bytes:
            return computation
        node, feed, found = computation.node, computation.feed, []
        least = 1 if feed is None else feed.parts
        cuts = [parts for parts in (least, *_PARTS) if least <= parts <= self._batch] if node.operator.batched else [1]
        for parts in cuts:
            try:
                found.append(self.plan(node, limit_bytes, parts, feed))
            except NotSupportedError:
                continue
        if found:
            return min(found, key=lambda one: one.seconds)
        whole = (self.plan(node, parts=parts, feed=feed) for parts in cuts)
        return min(whole, key=lambda one: (one.scratch_bytes, one.seconds), default=computation)


def schedule(graph: Graph, handle: Handle, batch: int, limit_bytes: int | None = None) -> Schedule:
    """Choose how every node is computed.

    Args:
        graph: The net.
        handle: Whose device, and preference.
        batch: Number of images.
        limit_bytes: What values and scratch memory may take together, as far as the nodes can be computed with less. None for
            little more than the values take alone, and more where that costs more than `TOLERANCE` of the estimated time.
    """
    placement = place(graph, batch)
    feeds = find_feeds(graph, placement, batch, handle.device.figures.l2_bytes)
    placement = with_room_for_parts(placement, feeds.values(), batch)
    planner = _Planner(graph, handle, placement, batch)
    idle = placement.idle | {feed.node.name for feed in feeds.values()}

    def plan(node: Node) -> Computation:
        feed = feeds.get(node.name)
        return planner.plan(node) if feed is None else planner.plan(node, parts=feed.parts, feed=feed)

    fastest = [Computation(node, ()) if node.name in idle else plan(node) for node in graph.nodes]
    needed = [placement.live_bytes(step) for step in range(len(fastest))]

    def within(limit: int) -> Schedule:
        found = [planner.within(one, max(limit - own, 0)) for own, one in zip(needed, fastest, strict=True)]
        scratch = {step: one.scratch_bytes for step, one in enumerate(found)}
        return Schedule(placement.beside(scratch), tuple(found))

    if limit_bytes is not None:
        return within(limit_bytes)
    most = max(own + one.scratch_bytes for own, one in zip(needed, fastest, strict=True))
    least = min(placement.nbytes + SPARE_BYTES, most)
    allowed = sum(one.seconds for one in fastest) * (1 + TOLERANCE)
    tried = (within(round(least + share * (most - least))) for share in _SHARES)
    return next(one for one in tried if one.seconds <= allowed)
