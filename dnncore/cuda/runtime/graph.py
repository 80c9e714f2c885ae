"""A CUDA graph of bound calls: one launch for a whole program.

The graph is put together from the calls themselves, node by node, without capturing a stream: so it is known which node reads and
writes which memory, and memory can be exchanged in a graph that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import pack_into

from dnncore.backend import Address, Bound, Move, Stream
from dnncore.cuda.calls import Calls, Copy, KernelCall, Memset, Place, WhereAligned
from dnncore.cuda.runtime import driver_tensor_map
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.driver import CudaCallError
from dnncore.cuda.runtime.driver_graph import DriverGraph
from dnncore.cuda.runtime.kernels import Kernels
from dnncore.cuda.runtime.owner import Owner
from dnncore.cuda.runtime.stream import CudaStream
from dnncore.cuda.unit import Unit
from dnncore.errors import ClosedError

__all__ = ["CudaGraph", "Node", "nodes_of"]


@dataclass(frozen=True, slots=True)
class KernelNode:
    """A kernel with all its parameters. Immutable."""

    unit: Unit
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: bytes
    shared_bytes: int
    starts_early: bool = False


@dataclass(frozen=True, slots=True)
class MemsetNode:
    """Memory that is filled with one byte. Immutable."""

    address: int
    value: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CopyNode:
    """A copy within the device. Immutable."""

    destination: int
    source: int
    nbytes: int


Node = KernelNode | MemsetNode | CopyNode


def nodes_of(
    calls: Calls,
    alpha: float,
    beta: float,
    addresses: Sequence[Address],
    constants: frozenset[int] = frozenset(),
) -> Iterator[Node]:
    """Calls with their factors and addresses filled in, and the choices that depend on alignment made.

    Where calls have tensor maps, the driver encodes them, and a context is current.

    Args:
        calls: What runs.
        alpha: As of `Bound`, like the others.
        beta: Likewise.
        addresses: Likewise.
        constants: Likewise.
    """

    def at(place: Place) -> int:
        return int(addresses[place.operand]) + place.offset_bytes

    for call in calls:
        if isinstance(call, KernelCall):
            params = bytearray(call.params)
            for slot in call.slots:
                pack_into("<Q", params, slot.field, at(slot.place))
            for held in call.maps:
                encoded = driver_tensor_map.encode_tensor_map(held.tensor, at(held.place))
                params[held.field : held.field + len(encoded)] = encoded
            for field, factor in ((call.alpha, alpha), (call.beta, beta)):
                if field is not None:
                    pack_into("<d", params, field, factor)
            for constant in call.constants:
                pack_into("<i", params, constant.field, constant.place.operand in constants)
            yield KernelNode(call.unit, call.grid, call.block, bytes(params), call.shared_bytes, call.starts_early)
        elif isinstance(call, WhereAligned):
            fits = all(at(place) % multiple == 0 for place, multiple in call.alignments)
            yield from nodes_of(call.aligned if fits else call.otherwise, alpha, beta, addresses, constants)
        elif isinstance(call, Memset):
            yield MemsetNode(at(call.place), call.value, call.nbytes)
        elif isinstance(call, Copy):
            yield CopyNode(at(call.destination), at(call.source), call.nbytes)


_Moved = dict[tuple[int, int], tuple[int, tuple[int, ...]]]
"""Ranges as they were when a graph was made: where each is now, and which steps touch it."""


def _moved(step: Bound, moved: _Moved) -> list[Address]:
    """A step's addresses after all moves."""
    addresses = list(step.addresses)
    for place, address in enumerate(addresses):
        for (start, end), (new, _) in moved.items():
            if address is not None and start <= address < end:
                addresses[place] = new + address - start
    return addresses


def _kinds(nodes: Sequence[Node]) -> list[tuple[type, bool]]:
    """What a graph that is there cannot change: the types of its nodes, and how they follow each other."""
    return [(type(node), isinstance(node, KernelNode) and node.starts_early) for node in nodes]


class CudaGraph:
    """Steps of a program as one launch. Owned by one thread; checked.

    Launches of one graph run one after the other, on whatever streams; graphs run side by side.

    Args:
        context: Of the device.
        kernels: Where its kernels are.
        steps: What runs, in this order.
    """

    def __init__(self, context: Context, kernels: Kernels, steps: Sequence[Bound]) -> None:
        self._context = context
        self._kernels = kernels
        self._owner = Owner(f"graph of {context.name}")
        self._steps = list(steps)
        self._moved: _Moved = {}
        self._graph: DriverGraph | None = None
        with context:
            self._nodes = [self._nodes_of(step, step.addresses) for step in self._steps]
            self._graph, self._firsts = self._built(self._nodes)
        context.add_user(self)

    @staticmethod
    def _nodes_of(step: Bound, addresses: Sequence[Address]) -> list[Node]:
        return list(nodes_of(step.work, step.alpha, step.beta, addresses, step.constants))

    def _built(self, steps: Sequence[list[Node]]) -> tuple[DriverGraph, list[int]]:
        """A graph of the nodes of all steps, and the place of each step's first one in it."""
        graph, firsts, place = DriverGraph(), [], 0
        try:
            for nodes in steps:
                firsts.append(place)
                place += len(nodes)
                for node in nodes:
                    if isinstance(node, KernelNode):
                        graph.add_kernel(*self._launch_of(node), starts_early=node.starts_early)
                    elif isinstance(node, MemsetNode):
                        graph.add_memset(node.address, node.value, node.nbytes)
                    else:
                        graph.add_copy(node.destination, node.source, node.nbytes)
            graph.instantiate()
        except BaseException:
            graph.destroy()
            raise
        return graph, firsts

    def _launch_of(self, node: KernelNode) -> tuple[object, tuple[int, int, int], tuple[int, int, int], bytes, int]:
        function = self._kernels.function(node.unit, node.shared_bytes)
        return function, node.grid, node.block, node.params, node.shared_bytes

    def adopt(self) -> None:
        """Belong to the calling thread from now on."""
        self._owner.adopt()

    def launch(self, stream: Stream) -> None:
        """Enqueue all steps.

        Raises:
            OwnerError: the calling thread is not the owner.
            ClosedError: the graph was given back.
        """
        assert isinstance(stream, CudaStream)
        graph = self._open()
        with self._context:
            graph.launch(stream.handle)

    def _open(self) -> DriverGraph:
        self._owner.check()
        if self._graph is None:
            raise ClosedError(f"graph of {self._context.name} was used after close()")
        return self._graph

    def move(self, moves: Sequence[Move]) -> None:
        """Let the launches from now on use other memory; those under way keep what they have.

        Ranges are given as they were when the graph was made, whatever was moved since. Each node that touches one gets new
        parameters, and another kernel where an address is aligned otherwise than before. Where that takes more or fewer nodes, the
        graph is made again.
        """
        graph = self._open()
        moved, touched = dict(self._moved), dict[int, None]()
        for start, end, new in moves:
            now, steps = moved.get((start, end)) or (start, self._touching(start, end))
            if now != new:
                moved[start, end] = new, steps
                touched.update(dict.fromkeys(steps))
        self._give(graph, {index: _moved(self._steps[index], moved) for index in touched})
        self._moved = moved

    def rebind(self, steps: Iterable[int], addresses: Sequence[Address]) -> None:
        """Let the launches from now on have these addresses at some steps, by their numbers; those under way keep what they have.

        For a graph in which nothing is moved: ranges that are given for that are as they were when it was made.
        """
        assert not self._moved
        self._give(self._open(), dict.fromkeys(steps, addresses))

    def _give(self, graph: DriverGraph, addresses: Mapping[int, Sequence[Address]]) -> None:
        """Give steps other addresses: their nodes get new parameters, and the graph is made again where these are others."""
        nodes = list(self._nodes)
        with self._context:
            for index, of_step in addresses.items():
                nodes[index] = self._nodes_of(self._steps[index], of_step)
            if all(_kinds(self._nodes[index]) == _kinds(nodes[index]) for index in addresses) and self._set(
                graph, nodes, addresses
            ):
                self._nodes = nodes
            else:  # should it fail, there is no graph any more: it may be changed by half
                self._graph = None
                try:
                    self._graph, self._firsts = self._built(nodes)
                    self._nodes = nodes
                finally:
                    graph.destroy()

    def _touching(self, start: int, end: int) -> tuple[int, ...]:
        return tuple(
            index
            for index, step in enumerate(self._steps)
            if any(address is not None and start <= address < end for address in step.addresses)
        )

    def _set(self, graph: DriverGraph, nodes: Sequence[list[Node]], touched: Iterable[int]) -> bool:
        """Give the nodes that have changed other parameters; whether the driver took them all.

        It refuses a copy that goes from allocated memory to the pool's, and then the graph is made again, as a whole.
        """
        try:
            for index in touched:
                for place, (old, node) in enumerate(
                    zip(self._nodes[index], nodes[index], strict=True), self._firsts[index]
                ):
                    if node == old:
                        continue
                    if isinstance(node, KernelNode):
                        graph.set_kernel(place, *self._launch_of(node))
                    elif isinstance(node, MemsetNode):
                        graph.set_memset(place, node.address, node.value, node.nbytes)
                    else:
                        graph.set_copy(place, node.destination, node.source, node.nbytes)
        except CudaCallError:
            return False
        return True

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended."""
        self.release()

    def close(self) -> None:
        """Give the graph back once its launches have run; a second call does nothing."""
        self._owner.check()
        self.release()

    def release(self) -> None:
        """Give it back from whichever thread; a second call does nothing."""
        graph, self._graph = self._graph, None
        if graph is not None and not self._context.forked:
            self._context.remove_user(self)
            with self._context:
                graph.destroy()
