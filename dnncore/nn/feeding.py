"""What is made for one node out of what a net is given: made part by part, right before that node reads it.

Images that are cast, or normalised, stay as they were given, because a net can be run again. Whole, they would lie in memory twice;
and a part is still in the L2 cache of a GPU when it is read.

    step      cast   conv        cast and conv, part by part
    images    ===========        ====
    cast      ===========        =          room for a part
    conv             ====        ====
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dnncore.nn.graph import Graph, Node
from dnncore.nn.memory import Lifetime
from dnncore.nn.placement import Placement

__all__ = ["Feed", "find_feeds", "with_room_for_parts"]

_OF_L2 = 0.4
"""Of the level-2 cache, that a part fills at most."""


@dataclass(frozen=True)
class Feed:
    """A value that only one node reads, and that is made from what is given. Immutable.

    Args:
        node: What makes it.
        reader: The number of the node that reads it, as its first input.
        parts: Into how many parts the batch is cut, at least.
    """

    node: Node
    reader: int
    parts: int

    @property
    def value(self) -> str:
        """Its name."""
        return self.node.outputs[0]


def find_feeds(graph: Graph, placement: Placement, batch: int, l2_bytes: int) -> Mapping[str, Feed]:
    """Those that are too large to be made at once, by the names of the nodes that read them; not what multiplies.

    Args:
        graph: The net.
        placement: Where its values lie.
        batch: Number of images.
        l2_bytes: The device's level-2 cache.
    """
    given = {value.name for value in graph.inputs}
    numbers = {node.name: number for number, node in enumerate(graph.nodes)}
    alone, specs = _alone(placement), graph.specs(batch)
    found: dict[str, Feed] = {}
    for node in graph.nodes:
        (value, *others), readers = node.outputs, graph.consumers[node.outputs[0]]
        if others or value not in alone or value in graph.outputs or len(readers) != 1:
            continue
        (reader,), parts = readers, min(math.ceil(placement.lifetimes[value].nbytes / (l2_bytes * _OF_L2)), batch)
        reads_rows = reader.inputs.count(value) == 1 and reader.inputs[0] == value and 0 in reader.operator.batched
        given_specs = [None if name is None else specs[name] for name in node.inputs]
        multiplies = node.operator.macs(given_specs, [specs[value]]) > 0
        makes_rows = node.inputs[0] in given and node.operator.batched == {0} and not multiplies
        if reads_rows and makes_rows and parts > 1 and reader.name not in placement.idle:
            found[reader.name] = Feed(node, numbers[reader.name], parts)
    return found


def _alone(placement: Placement) -> set[str]:
    """Values that share their storage with no other."""
    storages = [place.storage for place in placement.places.values()]
    return {name for name in placement.lifetimes if storages.count(name) == 1}


def with_room_for_parts(placement: Placement, feeds: Iterable[Feed], batch: int) -> Placement:
    """The same places, but those of the values of feeds have room for a part only, while it is read."""
    places, lifetimes = dict(placement.places), dict(placement.lifetimes)
    for feed in feeds:
        whole = places[feed.value]
        part = whole.descriptor.with_shape((-(-batch // feed.parts), *whole.descriptor.shape[1:]))
        places[feed.value] = whole._replace(descriptor=part)
        lifetimes[feed.value] = Lifetime(part.nbytes, feed.reader, feed.reader)
    return replace(placement, places=places, lifetimes=lifetimes).beside({})
