"""The end of a classifier."""

from __future__ import annotations

from dnncore.errors import BadParamError
from dnncore.nn.graph import Graph, Node
from dnncore.nn.operators import Softmax

__all__ = ["ends_in_probabilities", "with_probabilities"]


def ends_in_probabilities(graph: Graph) -> bool:
    """Whether the output is that of a softmax along the channels."""
    node = graph.producer.get(graph.outputs[0])
    return node is not None and node.operator == Softmax()


def with_probabilities(graph: Graph) -> Graph:
    """This graph with a softmax behind it, or itself where it ends in one.

    Raises:
        BadParamError: it has several outputs.
    """
    if len(graph.outputs) != 1:
        raise BadParamError(f"net {graph.name!r} has {len(graph.outputs)} outputs; a classifier has one")
    if ends_in_probabilities(graph):
        return graph
    name = graph.free_name("probabilities")
    return graph.rewritten((*graph.nodes, Node(name, Softmax(), graph.outputs, (name,))), outputs=(name,))
