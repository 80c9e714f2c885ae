"""Channels last inside a net: there the elements that a convolution multiplies lie together, which tensor cores need."""

from __future__ import annotations

from dataclasses import replace

from dnncore.descriptors import Layout
from dnncore.nn.graph import Graph
from dnncore.nn.model import Model
from dnncore.nn.operators import Convolution

__all__ = ["channels_last"]


def channels_last(model: Model) -> Model:
    """Let values with spatial dimensions, and the filters, lie channels-last.

    Not those that are given or handed out, nor those of nodes that need rows, nor those that are written in rows.
    """
    graph = model.graph
    found = {
        name: Layout.NHWC
        for node in graph.nodes
        for name in node.outputs
        if len(graph.values[name].shape) > 3 and node.operator.writes_strided and not _is_bound(graph, name)
    }
    for node in graph.nodes:
        if isinstance(node.operator, Convolution):
            found |= {name: Layout.NHWC for name in node.reads[1:2] if name in graph.constant}
    return Model(replace(graph, layouts=found), model.weights)


def _is_bound(graph: Graph, name: str) -> bool:
    return name in graph.outputs or any(not reader.operator.strided for reader in graph.consumers[name])
