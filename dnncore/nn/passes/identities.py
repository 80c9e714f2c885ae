"""Nodes that only hand on what they read: dropout in a net that is run, and what exporters leave behind."""

from __future__ import annotations

from dataclasses import replace

from dnncore.nn.graph import Node
from dnncore.nn.model import Model
from dnncore.nn.operators.structure import Identity

__all__ = ["drop_identities"]


def drop_identities(model: Model) -> Model:
    """Let everybody read what an identity reads; one whose result is handed out stays, for its name."""
    graph = model.graph
    instead: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(None if name is None else instead.get(name, name) for name in node.inputs))
        (source, *_), (output, *_) = node.inputs, node.outputs
        if isinstance(node.operator, Identity) and output not in graph.outputs and source is not None:
            instead[output] = source
        else:
            nodes.append(node)
    return Model(graph.rewritten(nodes), model.weights)
