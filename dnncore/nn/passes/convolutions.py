"""What follows a convolution, done by the convolution: its result is written once, and never read again only to be rectified.

conv --> add(residual) --> activation          one node, where the last of them was
"""

from __future__ import annotations

from dnncore.nn.graph import Graph, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Activation, Binary, Convolution, FusedConvolution

__all__ = ["fuse_convolutions"]


def fuse_convolutions(model: Model) -> Model:
    """Fuse a residual and an activation into the convolution before them, where nobody else reads what lies between.

    The sum is rounded once in place of three times, so results differ in the last bits. Where both operands of an addition are
    convolutions, the later one takes the other's result.
    """
    graph = model.graph
    position = {node.name: number for number, node in enumerate(graph.nodes)}
    fused: dict[str, Node] = {}  # by the name of the node in whose place it stands
    gone: set[str] = set()
    for node in graph.nodes:
        if type(node.operator) is not Convolution or node.name in gone:
            continue
        residual, last = _residual(graph, node, position)
        activation = _only_reader(graph, last)
        if activation is not None and isinstance(activation.operator, Activation):
            mode, coefficient, end = activation.operator.mode, activation.operator.coefficient, activation
        else:
            mode, coefficient, end = None, 0.0, last
        if end is node:
            continue
        settings = (node.operator.stride, node.operator.padding, node.operator.dilation, node.operator.groups)
        inputs = (*node.inputs, None)[:3]
        operator = FusedConvolution(*settings, activation=mode, coefficient=coefficient)
        gone |= {node.name, last.name}
        fused[end.name] = Node(node.name, operator, (*inputs, residual) if residual else inputs, end.outputs)
    nodes = [fused.get(node.name, node) for node in graph.nodes if node.name in fused or node.name not in gone]
    return Model(graph.rewritten(nodes), model.weights)


def _residual(graph: Graph, conv: Node, position: dict[str, int]) -> tuple[str | None, Node]:
    """What is added to a convolution's result, and the node that does; None and the convolution where nothing is."""
    add = _only_reader(graph, conv)
    if add is None or add.operator != Binary("add"):
        return None, conv
    (result,) = conv.outputs
    other = next((name for name in add.reads if name != result), result)
    rival = graph.producer.get(other)
    if other == result or graph.values[other] != graph.values[result]._replace(name=other):
        return None, conv
    if rival is not None and position[rival.name] > position[conv.name] and _takes(graph, rival, add):
        return None, conv  # it will take this one's
    return other, add


def _takes(graph: Graph, rival: Node, add: Node) -> bool:
    return type(rival.operator) is Convolution and _only_reader(graph, rival) is add


def _only_reader(graph: Graph, node: Node) -> Node | None:
    """The one node that reads a node's result."""
    (result, *others) = node.outputs
    readers = graph.consumers[result]
    return readers[0] if not others and len(readers) == 1 and result not in graph.outputs else None
