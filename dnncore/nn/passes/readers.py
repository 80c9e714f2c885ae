"""Who reads a value: what passes ask that let a net's first convolution take images as they come."""

from __future__ import annotations

from dnncore.nn.graph import Graph, Node
from dnncore.nn.operators import Convolution, FusedConvolution

__all__ = ["only_reader", "plain_convolution"]


def only_reader(graph: Graph, value: str) -> Node | None:
    """The node that alone reads a value, as its first input and no other; None where others do, or it is handed out."""
    readers = graph.consumers[value]
    if len(readers) != 1 or value in graph.outputs:
        return None
    (reader,) = readers
    return reader if reader.inputs[0] == value and reader.inputs.count(value) == 1 else None


def plain_convolution(graph: Graph, value: str) -> Node | None:
    """The convolution of one group, without a residual, that alone reads a value; None where there is none."""
    reader = only_reader(graph, value)
    if reader is None or type(reader.operator) not in (Convolution, FusedConvolution):
        return None
    residual = (*reader.inputs, None, None)[3]
    return reader if residual is None and reader.operator.attributes["groups"] == 1 else None
