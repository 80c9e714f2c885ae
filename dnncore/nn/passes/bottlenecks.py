"""ResNet's blocks of layers, which one kernel can compute with what lies between them on the chip.

conv 1x1, f --> conv 3x3, f --> conv 1x1 [+ x, or something else], f          bottleneck, in 16 bits
                                conv 1x1 + conv 1x1 of x, f                   the same with its shortcut, whichever was added
"""

from __future__ import annotations

from typing import NamedTuple

from dnncore.nn.graph import Graph, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Bottleneck
from dnncore.nn.passes.layers import both, follows, is_convolution, is_pointwise, residual

__all__ = ["fuse_bottlenecks"]

_ACTIVATIONS = ((None, 0.0), ("relu", 0.0))
_INNER, _OUTPUTS = 64, 256
_CHANNELS, _OF_SHORTCUT = (64, 128, 192, 256), 64
"""Of which there is a kernel; other blocks are as well computed layer by layer."""


class _Block(NamedTuple):
    """Convolutions that become one node, in place of `last`; `restore` or `shortcut` is the last of them. Immutable."""

    reduce: Node
    middle: Node
    restore: Node
    last: Node
    shortcut: Node | None = None
    z: str | None = None

    @property
    def layers(self) -> tuple[Node, ...]:
        """All of them."""
        return (self.reduce, self.middle, self.restore, *(() if self.shortcut is None else (self.shortcut,)))


def fuse_bottlenecks(model: Model) -> Model:
    """Make one node of the convolutions of a bottleneck with 64 channels within, where nobody else reads what lies between them.

    What lies between is rounded as before; but of two convolutions that are added, which of the two is rounded before, if any. An
    executor still computes the node layer by layer where that is faster by estimate.
    """
    graph = model.graph
    found: dict[str, Node] = {}  # by the name of the node in whose place it stands
    gone: set[str] = set()
    for node in graph.nodes:
        block = _block(graph, node)
        if block is not None and gone.isdisjoint(layer.name for layer in block.layers):
            found[block.last.name] = _node(block)
            gone |= {layer.name for layer in block.layers}
    nodes = [found.get(node.name, node) for node in graph.nodes if node.name in found or node.name not in gone]
    return Model(graph.rewritten(nodes), model.weights)


def _block(graph: Graph, middle: Node) -> _Block | None:
    """The one around its middle convolution; None where there is none."""
    if not _is_middle(graph, middle) or follows(middle) not in _ACTIVATIONS:
        return None
    reduce, restore = graph.producer.get(middle.reads[0]), _only_reader(graph, middle)
    if reduce is None or restore is None or not is_pointwise(graph, reduce) or not is_pointwise(graph, restore):
        return None
    if follows(reduce) != follows(middle) or residual(reduce) is not None or _only_reader(graph, reduce) is not middle:
        return None
    channels = graph.values[reduce.reads[0]].shape[1]
    if restore.reads[0] != middle.outputs[0] or residual(restore) == middle.outputs[0]:
        return None
    if graph.values[restore.outputs[0]].shape[1] != _OUTPUTS or channels not in _CHANNELS:
        return None
    if follows(restore) == follows(middle):
        return _with_restored(graph, reduce, middle, restore)
    last = _only_reader(graph, restore)
    if follows(restore) == (None, 0.0) and residual(restore) is None and last is not None:
        is_added = residual(last) == restore.outputs[0] != last.reads[0]
        if is_added and follows(last) == follows(middle) and _is_shortcut(graph, last, reduce):
            return _Block(reduce, middle, restore, last, shortcut=last)
    return None


def _with_restored(graph: Graph, reduce: Node, middle: Node, restore: Node) -> _Block:
    """What ends with the last of the three, and what it adds."""
    z = residual(restore)
    shortcut = None if z is None else graph.producer.get(z)
    if shortcut is None or not _is_shortcut(graph, shortcut, reduce) or _only_reader(graph, shortcut) is not restore:
        return _Block(reduce, middle, restore, restore, z=z)
    if follows(shortcut) != (None, 0.0) or residual(shortcut) is not None:
        return _Block(reduce, middle, restore, restore, z=z)
    return _Block(reduce, middle, restore, restore, shortcut=shortcut)


def _is_shortcut(graph: Graph, node: Node, reduce: Node) -> bool:
    """Whether it is a convolution of what the block reads, which has few channels."""
    is_of_x = is_pointwise(graph, node) and node.reads[0] == reduce.reads[0]
    return is_of_x and graph.values[node.reads[0]].shape[1] == _OF_SHORTCUT


def _is_middle(graph: Graph, node: Node) -> bool:
    if not is_convolution(graph, node) or residual(node) is not None:
        return False
    settings, weight = node.operator.attributes, graph.values[node.reads[1]].shape
    steps = (*(both(settings[name]) for name in ("stride", "padding", "dilation")), settings["groups"])
    return weight == (_INNER, _INNER, 3, 3) and steps == (1, 1, 1, 1)


def _only_reader(graph: Graph, node: Node) -> Node | None:
    """Who alone reads what a node gives."""
    (value,) = node.outputs
    readers = graph.consumers[value]
    return readers[0] if len(readers) == 1 and value not in graph.outputs else None


def _node(block: _Block) -> Node:
    mode, coefficient = follows(block.middle)
    filters, biases = zip(
        *((*layer.inputs, None)[1:3] for layer in (block.reduce, block.middle, block.restore)), strict=True
    )
    shortcut = (None, None) if block.shortcut is None else (*block.shortcut.inputs, None)[1:3]
    x = block.reduce.inputs[0]
    adds_x = block.z is not None and block.z == x
    operator = Bottleneck(activation=mode, coefficient=coefficient, residual=adds_x)
    inputs = [x, *filters, *biases, *shortcut, None if adds_x else block.z]
    while inputs[-1] is None:
        inputs.pop()
    return Node(block.last.name, operator, tuple(inputs), block.last.outputs)
