"""From a net as it is run to the graph of one training step: statistics of the batch, dropout, the loss, and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dnncore import ops
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn.gradient import Differentiated, differentiate
from dnncore.nn.graph import BATCH, Graph, Node, Role, Value
from dnncore.nn.heads import Head, outputs_of
from dnncore.nn.losses import SoftmaxLoss
from dnncore.nn.operator import Operator
from dnncore.nn.operators import (
    BatchNorm,
    BatchNormTraining,
    Binary,
    CrossEntropy,
    Dropout,
    DropoutTraining,
    Identity,
    MeanBackward,
    MeanCrossEntropyBackward,
    Reshape,
    Scale,
    Slice,
)
from dnncore.nn.trainable import Trainable

__all__ = ["DROPOUT", "LABELS", "LOSS", "dropout_states", "for_training", "in_training"]

LABELS = "labels"
"""What a graph for training reads beside its own inputs: classes, int32 [N]."""

LOSS = "loss"
"""What it gives: the loss of each image [N]."""

DROPOUT = "dropout_states"
"""What it reads where there are dropouts: their states, int32 [dropouts, 4]."""


def in_training(graph: Graph) -> Graph:
    """The graph with batch normalisations that take statistics of the batch, and update their own, and dropouts that drop.

    A normalisation whose statistics are no buffers keeps them: it is frozen, as those of Caffe with `use_global_stats: true`.
    It reads `DROPOUT` too, a state for each dropout, where there are some: int32 [dropouts, 4].
    """
    nodes: list[Node] = []
    updates: dict[str, str] = {}
    dropouts = 0
    for node in graph.nodes:
        if isinstance(node.operator, BatchNorm) and _has_running_statistics(graph, node):
            operator = BatchNormTraining(node.operator.epsilon, node.operator.momentum)
            saved = tuple(f"{node.name}.batch_{part}" for part in ("mean", "inv_std"))
            new = tuple(f"{node.name}.new_{part}" for part in operator.input_names[3 : len(node.reads)])
            nodes.append(Node(node.name, operator, node.inputs, (*node.outputs, *saved, *new)))
            statistics = zip(node.reads[3:], new, strict=True)
            updates |= {old: new for old, new in statistics if old not in updates}
        elif isinstance(node.operator, Dropout):
            row, state = f"{node.name}.row", f"{node.name}.state"
            nodes += [
                Node(row, Slice(0, dropouts, dropouts + 1), (DROPOUT,), (row,)),
                Node(state, Reshape((4,)), (row,), (state,)),
                Node(node.name, DropoutTraining(node.operator.probability), (*node.inputs, state), node.outputs),
            ]
            dropouts += 1
        else:
            nodes.append(node)
    states = (Value(DROPOUT, DType.INT32, (dropouts, 4)),) if dropouts else ()
    return replace(graph.rewritten(nodes, inputs=(*graph.inputs, *states)), updates=updates)


def _has_running_statistics(graph: Graph, norm: Node) -> bool:
    return all(name in graph.constant and graph.constant[name].role is Role.BUFFER for name in norm.reads[3:])


def for_training(net: Graph | Trainable) -> Differentiated:
    """One training step of a classifier: its loss and the gradients of its trainable constants.

    Args:
        net: A graph that ends in logits [N, K], or one with several heads.

    Returns:
        It reads `LABELS` too, and `DROPOUT` as `in_training` says, and gives `LOSS`, the loss of each image, in place of the
        logits: the weighted sum of all heads'. The gradients are those of its mean over the batch. Running statistics are updated
        with every run.

    Raises:
        BadParamError: as `differentiate`; or a graph has several outputs; or a name is taken.
    """
    if isinstance(net, Graph):
        if len(net.outputs) != 1:
            raise BadParamError(f"net {net.name!r} has {len(net.outputs)} outputs; a classifier has one")
        net = Trainable(net, (Head(net.outputs[0]),))
    net = _without_names(net, (LABELS, LOSS, DROPOUT))
    graph = in_training(_without_frozen(net))
    labels = Value(LABELS, DType.INT32, (BATCH,))
    nodes, seeds = _losses(graph, net.heads)
    return differentiate(
        graph.rewritten((*graph.nodes, *nodes), outputs=(LOSS,), inputs=(*graph.inputs, labels)), seeds
    )


def _without_frozen(net: Trainable) -> Graph:
    """The graph in which nothing may change what is frozen."""
    graph = net.graph
    constants = [replace(one, role=Role.FIXED) if one.name in net.frozen else one for one in graph.constants]
    return graph.rewritten(graph.nodes, constants=constants)


def _without_names(net: Trainable, names: Sequence[str]) -> Trainable:
    """The net with other names for what is computed under these: a layer "loss" or "labels" is no rarity."""
    graph = net.graph
    new = {name: graph.free_name(f"{name}.of_net") for name in names if name in graph.producer}
    if not new:
        return net
    nodes = []
    for node in graph.nodes:
        inputs = tuple(None if name is None else new.get(name, name) for name in node.inputs)
        outputs = tuple(new.get(name, name) for name in node.outputs)
        nodes.append(Node(new.get(node.name, node.name), node.operator, inputs, outputs))
    heads = tuple(head.renamed(new) for head in net.heads)
    graph = replace(graph, nodes=tuple(nodes), outputs=outputs_of(heads))
    return replace(net, graph=graph, heads=heads)


def _losses(graph: Graph, heads: Sequence[Head]) -> tuple[list[Node], dict[str, str]]:
    """The nodes of each head's loss, of `LOSS`, their weighted sum, and of the gradients that begin there, by their values."""
    first, *others = heads
    nodes: list[Node] = []
    seeds: dict[str, str] = {}
    own: list[str] = []
    for place, head in enumerate(heads):
        name = LOSS if not others and first.weight == 1 else _free(graph, f"{LOSS}.{head.logits}", nodes)
        seed = _free(graph, f"d.{LOSS}" if place == 0 else f"d.{LOSS}.{head.logits}", nodes)
        own.append(name)
        if head.loss == SoftmaxLoss():  # one operation for the gradient
            nodes.append(Node(name, CrossEntropy(), (head.logits, LABELS), (name,)))
            nodes.append(Node(seed, MeanCrossEntropyBackward(head.weight), (head.logits, LABELS), (seed,)))
            seeds[head.logits] = seed
        else:
            parts = _Parts(graph, nodes, name)
            losses = head.loss.nodes(parts.add, head.logits, LABELS, graph.values[head.logits].dtype.value)
            nodes.append(Node(name, Identity(), (losses,), (name,)))
            nodes.append(Node(seed, MeanBackward(head.weight), (name,), (seed,)))
            seeds[name] = seed
    if own == [LOSS]:
        return nodes, seeds
    sums = [_free(graph, f"{LOSS}.sum{place}", nodes) for place in range(len(others))] + [LOSS]
    nodes.append(Node(sums[0], Scale(first.weight), (own[0],), (sums[0],)))
    for place, head in enumerate(others, 1):
        added = Binary("add", 1.0, head.weight)
        nodes.append(Node(sums[place], added, (sums[place - 1], own[place]), (sums[place],)))
    return nodes, seeds


def _free(graph: Graph, wanted: str, nodes: Sequence[Node]) -> str:
    return graph.free_name(wanted, [node.name for node in nodes])


class _Parts:
    """The nodes that a loss is made of, as they come. Owned by one thread; not checked."""

    def __init__(self, graph: Graph, nodes: list[Node], name: str) -> None:
        self._graph = graph
        self._nodes = nodes
        self._name = name

    def add(self, operator: Operator, *inputs: str) -> str:
        """Add a node, under a name of the loss's; its output."""
        output = _free(self._graph, f"{self._name}.{operator.kind}", self._nodes)
        self._nodes.append(Node(output, operator, inputs, (output,)))
        return output


def dropout_states(graph: Graph, seed: int, step: int) -> Mapping[str, np.ndarray]:
    """What a graph for training is to be fed with for its dropouts; nothing where it has none.

    Args:
        graph: Of `for_training`.
        seed: Of the run.
        step: Another step, other elements; equal seeds and steps drop the same.
    """
    for value in graph.inputs:
        if value.name == DROPOUT:
            count = int(value.shape[0])
            return {DROPOUT: np.stack([ops.dropout_state(seed, step * count + number) for number in range(count)])}
    return {}
