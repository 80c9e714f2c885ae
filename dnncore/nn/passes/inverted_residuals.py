"""MobileNetV2's blocks of layers, which one kernel can compute with what lies between them on the chip.

conv 1x1, clipped --> depthwise 3x3, clipped --> conv 1x1 [+ x]          inverted_residual, in 16 bits
"""

from __future__ import annotations

from dnncore.nn.graph import Graph, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import InvertedResidual
from dnncore.nn.passes.layers import both, follows, is_convolution, is_pointwise, residual

__all__ = ["fuse_inverted_residuals"]

_CLAMPS = (None, "relu", "clipped_relu")


def fuse_inverted_residuals(model: Model) -> Model:
    """Make one node of the convolutions of an inverted residual, in 16 bits, where nobody else reads what lies between them.

    What lies between is rounded as before, so that results differ by the order of sums alone. An executor still computes the
    node layer by layer where that is faster by estimate.
    """
    graph = model.graph
    found: dict[str, Node] = {}  # by the name of the node in whose place it stands
    gone: set[str] = set()
    for node in graph.nodes:
        layers = _layers(graph, node)
        if layers and gone.isdisjoint(layer.name for layer in layers):
            found[layers[-1].name] = _block(layers)
            gone |= {layer.name for layer in layers}
    nodes = [found.get(node.name, node) for node in graph.nodes if node.name in found or node.name not in gone]
    return Model(graph.rewritten(nodes), model.weights)


def _layers(graph: Graph, depthwise: Node) -> tuple[Node, ...]:
    """The convolutions of a block around its depthwise one, two where channels are not expanded; none where there is no block."""
    if not _is_depthwise(graph, depthwise) or follows(depthwise)[0] not in _CLAMPS:
        return ()
    (filtered,), x = depthwise.outputs, depthwise.inputs[0]
    readers = graph.consumers[filtered]
    if len(readers) != 1 or filtered in graph.outputs:
        return ()
    (project,) = readers
    if not is_pointwise(graph, project) or project.inputs[0] != filtered or follows(project) != (None, 0.0):
        return ()
    expand = None if x is None else graph.producer.get(x)
    spreads = (
        expand is not None
        and is_pointwise(graph, expand)
        and graph.is_only_read_by(expand.outputs[0], depthwise)
        and follows(expand) == follows(depthwise)
        and residual(expand) is None
    )
    layers = (expand, depthwise, project) if spreads and expand is not None else (depthwise, project)
    return layers if residual(project) in (None, layers[0].inputs[0]) else ()


def _is_depthwise(graph: Graph, node: Node) -> bool:
    if not is_convolution(graph, node) or residual(node) is not None:
        return False
    settings, weight = node.operator.attributes, graph.values[node.reads[1]].shape
    steps = (both(settings["padding"]), both(settings["dilation"]), settings["groups"])
    square = weight[1:] == (1, 3, 3) and both(settings["stride"]) in (1, 2)
    return square and steps == (1, 1, weight[0]) and graph.values[node.reads[0]].shape[1] == weight[0]


def _block(layers: tuple[Node, ...]) -> Node:
    *before, depthwise, project = layers
    mode, coefficient = follows(depthwise)
    stride = both(depthwise.operator.attributes["stride"])
    assert isinstance(stride, int)
    operator = InvertedResidual(
        activation=mode, coefficient=coefficient, stride=stride, residual=residual(project) is not None
    )
    (_, filters, of_filters), (_, weight, bias) = ((*node.inputs, None)[:3] for node in (depthwise, project))
    spread, of_spread = (*before[0].inputs, None)[1:3] if before else (None, None)
    inputs = (layers[0].inputs[0], filters, weight, spread, of_spread, of_filters, bias)
    return Node(project.name, operator, inputs, project.outputs)
