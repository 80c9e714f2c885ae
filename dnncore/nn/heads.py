"""The ends of a classifier: logits, and the probabilities that they become."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dnncore.errors import BadParamError
from dnncore.nn.graph import BATCH, Extent, Graph, Node
from dnncore.nn.losses import Loss, SoftmaxLoss
from dnncore.nn.operators import Flatten, Identity, Reshape, Softmax

__all__ = [
    "Head",
    "ends_in_probabilities",
    "outputs_of",
    "pruned",
    "with_flat_outputs",
    "with_logits",
    "with_probabilities",
]


@dataclass(frozen=True, slots=True)
class Head:
    """Logits, or another value, that have a loss of their own while a net is trained. Immutable.

    Args:
        logits: Name of a value [N, K]; of any shape where the loss is not of classes.
        weight: Factor of its loss in the sum that is minimised.
        loss: What is minimised.
    """

    logits: str
    weight: float = 1.0
    loss: Loss = SoftmaxLoss()  # noqa: RUF009 (frozen)

    def renamed(self, names: Mapping[str, str]) -> Head:
        """The same head of a net whose values have other names, by the names that they had."""
        return Head(names.get(self.logits, self.logits), self.weight, self.loss.renamed(names))


def outputs_of(heads: Sequence[Head]) -> tuple[str, ...]:
    """What a graph gives for its heads: their values in their order, then what their losses read besides, each once."""
    targets = (target for head in heads for target in head.loss.targets)
    return tuple(dict.fromkeys((*(head.logits for head in heads), *targets)))


def ends_in_probabilities(graph: Graph) -> bool:
    """Whether the output is that of a softmax along the channels."""
    node = graph.producer.get(graph.outputs[0])
    return node is not None and node.operator == Softmax()


def with_probabilities(graph: Graph) -> Graph:
    """This graph with a softmax behind it, or itself where it ends in one.

    Raises:
        BadParamError: it has several outputs.
    """
    _the_output(graph)
    if ends_in_probabilities(graph):
        return graph
    name = graph.free_name("probabilities")
    return graph.rewritten((*graph.nodes, Node(name, Softmax(), graph.outputs, (name,))), outputs=(name,))


def with_logits(graph: Graph) -> Graph:
    """A classifier without the softmaxes that its outputs end in, if any do."""
    logits = tuple(
        dict.fromkeys(_before_softmax(graph, name) for name in graph.outputs)
    )  # one may be given with its softmax
    return pruned(graph.rewritten(graph.nodes, outputs=logits))


def with_flat_outputs(graph: Graph, names: Collection[str] | None = None) -> Graph:
    """A classifier that gives [N, K] where it gave [N, K, 1, 1], as convolutional ones do.

    Args:
        graph: The classifier.
        names: Of the outputs that are logits; None for all.

    Raises:
        BadParamError: an output is neither; the message names it.
    """
    nodes, outputs = list(graph.nodes), []
    for name in graph.outputs:
        if names is not None and name not in names:
            outputs.append(name)
            continue
        if _classes(graph, name) is None:
            raise BadParamError(f"net {graph.name!r} gives {graph.values[name]}; a classifier gives [N, classes]")
        output = name
        if len(graph.values[name].shape) > 2:
            output = graph.free_name(f"{name}.flat", [node.name for node in nodes])
            nodes.append(Node(output, Flatten(), (name,), (output,)))
        outputs.append(output)
    return graph.rewritten(nodes, outputs=tuple(outputs))


def pruned(graph: Graph) -> Graph:
    """The graph without the nodes, constants and inputs that no output needs."""
    rest = graph.without_unused()
    read = {name for node in rest.nodes for name in node.reads} | set(rest.outputs)
    return rest.rewritten(rest.nodes, inputs=tuple(value for value in rest.inputs if value.name in read))


def _classes(graph: Graph, name: str) -> Extent | None:
    """K of a value [N, K] or [N, K, 1, ...]; None of any other."""
    shape = graph.values[name].shape
    is_classifier = len(shape) > 1 and shape[0] == BATCH and isinstance(shape[1], int) and set(shape[2:]) <= {1}
    return shape[1] if is_classifier else None


def _before_softmax(graph: Graph, name: str) -> str:
    """What a softmax at the end reads, also where its result is only seen in another shape behind it; else the value itself."""
    place = name
    while (node := graph.producer.get(place)) is not None and isinstance(node.operator, _SHAPES | Softmax):
        source = node.reads[0]
        if _classes(graph, source) != _classes(graph, name):
            break
        if isinstance(node.operator, Softmax):
            return source if node.operator.axis % len(graph.values[source].shape) == 1 else name
        place = source
    return name


_SHAPES = Flatten | Identity | Reshape


def _the_output(graph: Graph) -> str:
    if len(graph.outputs) != 1:
        raise BadParamError(f"net {graph.name!r} has {len(graph.outputs)} outputs; a classifier has one")
    return graph.outputs[0]
