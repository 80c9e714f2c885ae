"""What follows a fully connected layer, done in the same launch where that is faster: its bias and an activation."""

from __future__ import annotations

from dnncore.nn.graph import Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Activation, FusedInnerProduct, InnerProduct

__all__ = ["fuse_inner_products"]


def fuse_inner_products(model: Model) -> Model:
    """Fuse an activation, and the bias, into the inner product before them, where nobody else reads what lies between.

    Nothing is rounded between them where it is one launch, so results differ in the last bits.
    """
    graph = model.graph
    fused: dict[str, Node] = {}  # by the name of the node in whose place it stands
    gone: set[str] = set()
    for node in graph.nodes:
        if type(node.operator) is not InnerProduct or len(node.reads) < 3:
            continue
        reader = next(iter(graph.consumers[node.outputs[0]]), None)
        if (
            reader is not None
            and isinstance(reader.operator, Activation)
            and graph.is_only_read_by(node.outputs[0], reader)
        ):
            operator, end = FusedInnerProduct(reader.operator.mode, reader.operator.coefficient), reader
        else:
            operator, end = FusedInnerProduct(), node
        gone.add(node.name)
        fused[end.name] = Node(node.name, operator, node.inputs, end.outputs)
    nodes = [fused.get(node.name, node) for node in graph.nodes if node.name in fused or node.name not in gone]
    return Model(graph.rewritten(nodes), model.weights)
