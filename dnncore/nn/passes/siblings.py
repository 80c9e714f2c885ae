"""1x1 convolutions of one input as one: the input is read once, and few channels make a better product together than alone.

x --> a, b, c         x --> bca --> b, c, a            the results are channels of one value: views
a, p, q --> concat    bca, p, q --> wide --> concat    where one of them begins a concatenation, that is a view too
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import accumulate

import numpy as np

from dnncore.nn.graph import Constant, Graph, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Concat, Convolution, Slice
from dnncore.nn.operators.convolution import FusedConvolution

__all__ = ["merge_siblings"]


def merge_siblings(model: Model) -> Model:
    """Merge 1x1 convolutions of one input that differ in their filters only.

    Sums are as before; an algorithm may be another, so that results differ in the last bits.
    """
    graph, weights = model.graph, dict(model.weights)
    for siblings in _families(graph):
        graph, weights = _merged(graph, weights, siblings)
    return Model(graph, {name: weights[name] for name in graph.constant})


def _families(graph: Graph) -> list[tuple[Node, ...]]:
    """Convolutions that may become one, two or more each time."""
    found: defaultdict[tuple[object, ...], list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if _may_merge(graph, node):
            x, _, bias = (*node.inputs, None)[:3]
            found[x, node.operator, bias is None].append(node)
    return [tuple(nodes) for nodes in found.values() if len(nodes) > 1]


def _may_merge(graph: Graph, node: Node) -> bool:
    """Whether it is a 1x1 convolution of constants that are its own, and nobody needs its result where it lies."""
    if type(node.operator) not in (Convolution, FusedConvolution):
        return False
    operator = node.operator
    assert isinstance(operator, Convolution)
    _, weight, *others = node.inputs
    constants = [name for name in (weight, *others[:1]) if name is not None]
    own = all(name in graph.constant and graph.is_only_read_by(name, node) for name in constants)
    has_residual = any(name is not None for name in others[1:])
    is_pointwise = weight is not None and set(graph.values[weight].shape[2:]) == {1}
    return own and is_pointwise and not has_residual and operator.groups == 1 and node.outputs[0] not in graph.outputs


def _merged(
    graph: Graph, weights: dict[str, np.ndarray], siblings: tuple[Node, ...]
) -> tuple[Graph, dict[str, np.ndarray]]:
    """The graph with one convolution in place of several, and the weights with its own."""
    whole = _concatenation_of_one(graph, siblings)
    if whole is not None:  # what it begins with is the last of what is computed together
        siblings = tuple(sorted(siblings, key=lambda node: node.outputs[0] == whole.reads[0]))
    name = graph.free_name("+".join(node.name for node in siblings))
    weight, bias = (
        _joined(graph, weights, f"{name}.{what}", [(*node.inputs, None)[place] for node in siblings])
        for place, what in ((1, "weight"), (2, "bias"))
    )
    arrays = {constant.name: array for constant, array in filter(None, (weight, bias))}
    constants = (*graph.constants, *(constant for constant, _ in filter(None, (weight, bias))))
    inputs = (siblings[0].inputs[0], *(None if one is None else one[0].name for one in (weight, bias)))
    ends = list(accumulate(_channels(graph, node.outputs[0]) for node in siblings))
    begins = [0, *ends[:-1]]
    together = [
        Node(name, siblings[0].operator, inputs, (name,)),
        *(
            Node(node.name, Slice(1, begin, end), (name,), node.outputs)
            for node, begin, end in zip(siblings, begins, ends, strict=True)
        ),
    ]
    nodes: list[Node] = []
    for node in graph.nodes:
        if node in siblings:
            nodes, together = [*nodes, *together], []  # where the first of them was
        elif node is whole:
            wide, begin = graph.free_name(f"{node.name}.wide"), begins[-1]
            nodes.append(Node(wide, node.operator, (name, *node.inputs[1:]), (wide,)))
            part = Slice(1, begin, begin + _channels(graph, node.outputs[0]))
            nodes.append(Node(node.name, part, (wide,), node.outputs))
        else:
            nodes.append(node)
    return graph.rewritten(nodes, constants=constants), weights | arrays


def _joined(
    graph: Graph, weights: dict[str, np.ndarray], name: str, parts: list[str | None]
) -> tuple[Constant, np.ndarray] | None:
    """Weights or biases one behind the other; None where there are none."""
    names = [part for part in parts if part is not None]
    if not names:
        return None
    array = np.concatenate([weights[part] for part in names])
    return replace(graph.constant[names[0]], name=graph.free_name(name), shape=array.shape), array


def _concatenation_of_one(graph: Graph, siblings: tuple[Node, ...]) -> Node | None:
    """A concatenation of channels that begins with one of the results, which nobody else reads; it is written where that lies."""
    for node in siblings:
        (result,) = node.outputs
        readers = graph.consumers[result]
        begins = len(readers) == 1 and readers[0].operator == Concat(1) and readers[0].reads[0] == result
        if begins and readers[0].outputs[0] not in graph.outputs:
            return readers[0]
    return None


def _channels(graph: Graph, name: str) -> int:
    channels = graph.values[name].shape[1]
    assert isinstance(channels, int)
    return channels
