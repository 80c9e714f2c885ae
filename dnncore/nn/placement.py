"""Where the values of a graph lie: which share memory, as views, in place or as parts of a whole, and what the rest takes.

conv1 --> relu1 --> flatten --> ip1          relu1 lies where conv1 was, and flatten is a view of that: one storage
a, b  --> concat --> ...                     a and b are written where concat's result is: nothing is left to be copied

The pixels of such a result, if it is channels-last, are padded to whole lines of the cache: GoogLeNet's 3x3 layers over slices of
296 to 664 channels take up to a quarter less time on an H200 where each slab of 64 is one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.nn.graph import Graph, Node
from dnncore.nn.memory import Lifetime, assign_offsets, live_bytes
from dnncore.nn.operator import PARTIAL

__all__ = ["Place", "Placement", "place"]

_LINE_BYTES = 128
"""Of the second-level cache, and of a row of channels as convolutions load them."""

_MOST_PADDED = 1.25
"""Of its memory, that a whole may take for its pixels to be whole lines."""


class Place(NamedTuple):
    """Where a value lies. Immutable.

    Args:
        storage: What it lies in: the name of a constant, or of the value that the storage was made for.
        offset_bytes: From the beginning of the storage.
        descriptor: How it lies there.
    """

    storage: str
    offset_bytes: int
    descriptor: TensorDescriptor


@dataclass(frozen=True)
class Placement:
    """Places for all values of a graph and a number of images. Immutable.

    Args:
        places: Of every value that is read or written, by name.
        idle: Names of the nodes whose outputs are views of their inputs, so that they have nothing to do.
        lifetimes: Of the storages that are no constants, by name: sizes, and the nodes, by number, between which they are needed.
        offsets: Of these storages, in bytes from the beginning of one block.
        nbytes: Of that block.
    """

    places: Mapping[str, Place]
    idle: frozenset[str]
    lifetimes: Mapping[str, Lifetime]
    offsets: Mapping[str, int]
    nbytes: int

    def beside(self, scratch: Mapping[int, int]) -> Placement:
        """The same places in a block that begins with room for scratch memory, which only one node needs at a time.

        Args:
            scratch: Bytes, by the number of the node.
        """
        offsets, nbytes = assign_offsets(list(self.lifetimes.values()), scratch)
        return replace(self, offsets=dict(zip(self.lifetimes, offsets, strict=True)), nbytes=nbytes)

    def live_bytes(self, step: int) -> int:
        """What the storages take that are needed while a node, by its number, is computed."""
        return live_bytes(self.lifetimes.values(), step)


@dataclass
class _Storage:
    nbytes: int
    first: int
    last: int
    stays: bool  # it is an input, an output or a constant: nothing else may lie there


class _Placer:
    """The decisions, in three sweeps: parts of a whole from behind, views from the front, and then what is done in place."""

    def __init__(self, graph: Graph, batch: int) -> None:
        self.graph = graph
        self.specs = graph.specs(batch)
        self.places: dict[str, Place] = {}
        self.storages: dict[str, _Storage] = {}
        self.padded: dict[str, TensorDescriptor] = {}
        self.idle: set[str] = set()
        self.step = {node.name: number for number, node in enumerate(graph.nodes)}

    def place(self) -> Placement:
        graph, end = self.graph, len(self.graph.nodes)
        for constant in graph.constants:
            self._found(constant.name, self._own(constant.name), -1, end, stays=True)
        for value in graph.inputs:
            self._found(value.name, self._own(value.name), -1, end, stays=True)
        for name, new in graph.updates.items():
            self.places[new] = self.places[name]
        for node in reversed(graph.nodes):
            self._place_parts(node)
        for node in graph.nodes:
            self._place_views(node)
        self._find_lifetimes()
        for node in graph.nodes:
            self._place_in_place(node)
        lifetimes = {
            name: Lifetime(one.nbytes, one.first, one.last)
            for name, one in self.storages.items()
            if name not in graph.constant
        }
        return Placement(self.places, frozenset(self.idle), lifetimes, {}, 0).beside({})

    def _own(self, name: str) -> Place:
        return Place(name, 0, self.padded.get(name) or self.graph.descriptor(name, self.specs[name]))

    def _found(self, name: str, place: Place, first: int, last: int, *, stays: bool) -> None:
        self.places[name] = place
        self.storages[place.storage] = _Storage(place.descriptor.nbytes, first, last, stays)

    def _place_parts(self, node: Node) -> None:
        """Let what is put together be written where it belongs."""
        (output, *others) = node.outputs
        specs, whole = [self.specs[name] for name in node.reads], self.places.get(output) or self._own(output)
        parts = None if others else node.operator.placed(whole.descriptor, specs)
        if parts is None:
            return
        if self._may_be_a_part(output) and _are_channels(whole.descriptor, [descriptor for descriptor, _ in parts]):
            self.padded[output] = _with_whole_lines(whole.descriptor)
            whole = self._own(output)
            parts = node.operator.placed(whole.descriptor, specs)
            assert parts is not None, "gaps between pixels are no reason not to place them"
        for name, (descriptor, offset) in zip(node.reads, parts, strict=True):
            if node.reads.count(name) == 1 and self._may_be_a_part(name):
                offset_bytes = whole.offset_bytes + offset * descriptor.dtype.itemsize
                self.places[name] = Place(whole.storage, offset_bytes, descriptor)
        self.places[output] = whole

    def _may_be_a_part(self, name: str) -> bool:
        """Whether a value may have gaps: a node writes it that can, nobody reads it who cannot, and it is not handed out."""
        producer = self.graph.producer.get(name)
        if (
            producer is None
            or name in self.places
            or self._must_be_row_major(name)
            or not producer.operator.writes_strided
        ):
            return False
        first = producer.inputs[0] if producer.inputs else None
        seen = None if first is None else producer.operator.view(self._own(first).descriptor, [self.specs[name]])
        return seen is None

    def _place_views(self, node: Node) -> None:
        """Let what only looks at its input lie there; everything else that has no place gets its own."""
        first, free = (
            node.inputs[0] if node.inputs else None,
            [name for name in node.outputs if name not in self.places],
        )
        if first is not None and len(free) == len(node.outputs):
            base = self.places[first]
            views = node.operator.view(base.descriptor, [self.specs[name] for name in node.outputs])
            if views is not None and all(
                descriptor.is_row_major or not self._must_be_row_major(name)
                for name, (descriptor, _) in zip(node.outputs, views, strict=True)
            ):
                self.idle.add(node.name)
                for name, (descriptor, offset) in zip(node.outputs, views, strict=True):
                    offset_bytes = base.offset_bytes + offset * descriptor.dtype.itemsize
                    self.places[name] = Place(base.storage, offset_bytes, descriptor)
                return
        for name in free:
            self.places[name] = self._own(name)

    def _must_be_row_major(self, name: str) -> bool:
        return name in self.graph.outputs or any(not reader.operator.strided for reader in self.graph.consumers[name])

    def _find_lifetimes(self) -> None:
        """From the first value of a storage that is written to the last that is read."""
        end = len(self.graph.nodes)
        for node in self.graph.nodes:
            for name in node.outputs:
                place, step = self.places[name], self.step[node.name]
                readers = [self.step[reader.name] for reader in self.graph.consumers[name]]
                stays = name in self.graph.outputs
                last = end if stays else max(readers, default=step)
                known = self.storages.get(place.storage)
                if known is None:
                    nbytes = self._own(place.storage).descriptor.nbytes
                    self.storages[place.storage] = _Storage(nbytes, step, last, stays)
                elif not known.stays or stays:
                    known.first, known.last = min(known.first, step), max(known.last, last)
                    known.stays |= stays

    def _place_in_place(self, node: Node) -> None:
        """Let the first output take the memory of an input that is read for the last time."""
        (output, *_), step = node.outputs, self.step[node.name]
        place = self.places[output]
        own = self.storages.get(place.storage)
        if node.name in self.idle or own is None or place != self._own(output) or own.first != step:
            return
        used = [self.places[name].storage for name in node.reads]
        for number in sorted(node.operator.in_place, reverse=True):
            name = node.inputs[number] if number < len(node.inputs) else None
            if name is None:
                continue
            theirs = self.places[name]
            storage = self.storages[theirs.storage]
            alike = theirs.descriptor == place.descriptor and used.count(theirs.storage) == 1
            if alike and not storage.stays and storage.last == step:
                self._move(place.storage, theirs)
                return
            if node.operator.input_names[number] == PARTIAL:
                return  # it is copied to where the output lies, over what else would lie there

    def _move(self, storage: str, to: Place) -> None:
        """Let everything that lies in a storage lie in another."""
        gone, kept = self.storages.pop(storage), self.storages[to.storage]
        kept.last, kept.stays = max(kept.last, gone.last), kept.stays or gone.stays
        for name, place in self.places.items():
            if place.storage == storage:
                self.places[name] = place._replace(
                    storage=to.storage, offset_bytes=place.offset_bytes + to.offset_bytes
                )


def _are_channels(whole: TensorDescriptor, parts: Sequence[TensorDescriptor]) -> bool:
    """Whether parts are channels of channels-last images of several pixels."""
    if whole.ndim != 4 or whole != TensorDescriptor.packed(whole.shape, whole.dtype, Layout.NHWC):
        return False
    (batch, _, *places) = whole.shape
    return math.prod(places) > 1 and all((part.shape[0], *part.shape[2:]) == (batch, *places) for part in parts)


def _with_whole_lines(whole: TensorDescriptor) -> TensorDescriptor:
    """Channels-last images whose pixels begin where lines of the cache do, so that no part's rows meet one line more.

    As they are where that takes much more memory.
    """
    _, channels, rows, columns = whole.shape
    nbytes = channels * whole.dtype.itemsize
    padded = -(-nbytes // _LINE_BYTES) * _LINE_BYTES
    if padded > nbytes * _MOST_PADDED:
        return whole
    pitch = padded // whole.dtype.itemsize
    return TensorDescriptor(whole.dtype, whole.shape, (rows * columns * pitch, 1, columns * pitch, pitch))


def place(graph: Graph, batch: int) -> Placement:
    """Find places for a graph's values.

    Args:
        graph: The net.
        batch: Number of images.
    """
    return _Placer(graph, batch).place()
