"""From a net as it is run to the graph of one training step: statistics of the batch, dropout, the loss, and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dnncore import ops
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn.gradient import Differentiated, differentiate
from dnncore.nn.graph import BATCH, Graph, Node, Role, Value
from dnncore.nn.operators import (
    BatchNorm,
    BatchNormTraining,
    CrossEntropy,
    Dropout,
    DropoutTraining,
    MeanCrossEntropyBackward,
    Reshape,
    Slice,
)

__all__ = ["DROPOUT", "LABELS", "LOSS", "dropout_states", "for_training", "in_training"]

LABELS = "labels"
"""What a graph for training reads beside its own inputs: classes, int32 [N]."""

LOSS = "loss"
"""What it gives: the loss of each image [N]."""

DROPOUT = "dropout"
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
            names = tuple(f"{node.name}.{part}" for part in ("batch_mean", "batch_inv_std", "new_mean", "new_variance"))
            nodes.append(Node(node.name, operator, node.inputs, (*node.outputs, *names)))
            statistics = zip(node.inputs[3:], names[2:], strict=True)
            updates |= {old: new for old, new in statistics if old is not None and old not in updates}
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


def for_training(graph: Graph) -> Differentiated:
    """One training step of a classifier: its loss and the gradients of its trainable constants.

    Args:
        graph: Ends in logits [N, K].

    Returns:
        It reads `LABELS` too, and `DROPOUT` as `in_training` says, and gives `LOSS`, the cross-entropy of each image, in place of
        the logits; the gradients are those of its mean over the batch. Running statistics are updated with every run.

    Raises:
        BadParamError: as `differentiate`; or the net has several outputs; or a name is taken.
    """
    if len(graph.outputs) != 1:
        raise BadParamError(f"net {graph.name!r} has {len(graph.outputs)} outputs; a classifier has one")
    (logits,), seed = graph.outputs, f"d.{LOSS}"
    graph = in_training(graph)
    nodes = (
        *graph.nodes,
        Node(LOSS, CrossEntropy(), (logits, LABELS), (LOSS,)),
        Node(seed, MeanCrossEntropyBackward(), (logits, LABELS), (seed,)),
    )
    labels = Value(LABELS, DType.INT32, (BATCH,))
    return differentiate(graph.rewritten(nodes, outputs=(LOSS,), inputs=(*graph.inputs, labels)), {logits: seed})


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
