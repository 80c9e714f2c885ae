"""Gradients as nodes: a graph extended by what computes the derivatives of its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn.graph import FEW, MANY, Extent, Graph, Node, Role, symbolic
from dnncore.nn.operator import BackwardStep, Operator
from dnncore.nn.operators import Binary

__all__ = ["Differentiated", "differentiate"]


class Differentiated(NamedTuple):
    """A graph with gradients among its outputs. Immutable.

    Args:
        graph: The graph.
        gradients: Names of the gradients, by the names of what they belong to.
    """

    graph: Graph
    gradients: dict[str, str]


class _Tape:
    """The nodes of a backward pass as they come, with their shapes for two numbers of images: what differs is the batch's."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self._few, self._many = graph.specs(FEW), graph.specs(MANY)
        self._taken = set(self._few) | {node.name for node in graph.nodes}
        self.reason = ""

    def add(self, operator: Operator, *inputs: str | None) -> str:
        """See `Tape`."""
        (name,) = self.add_several(operator, *inputs)
        return name

    def add_several(self, operator: Operator, *inputs: str | None) -> tuple[str, ...]:
        """See `Tape`."""
        inputs = inputs[: len(inputs) - (inputs[-1] is None)]
        few, many = (
            operator.infer_checked([None if one is None else specs[one] for one in inputs])
            for specs in (self._few, self._many)
        )
        name = self._free_name(f"d.{self.reason}.{operator.kind}")
        outputs = (name, *(self._free_name(f"{name}.{number}") for number in range(1, len(few))))
        self.nodes.append(Node(name, operator, inputs, outputs))
        self._few.update(zip(outputs, few, strict=True))
        self._many.update(zip(outputs, many, strict=True))
        return outputs

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}.{number}"
        self._taken.add(name)
        return name

    def total(self, a: str, b: str) -> str:
        """See `Tape`."""
        return self.add(Binary("add"), a, b)

    def dtype(self, name: str) -> DType:
        """See `Tape`."""
        return self._few[name].dtype

    def shape(self, name: str) -> tuple[Extent, ...]:
        """See `Tape`."""
        return symbolic(name, self._few[name], self._many[name])


def differentiate(graph: Graph, seeds: Mapping[str, str], of: Iterable[str] | None = None) -> Differentiated:
    """Add the backward pass to a graph.

    Args:
        graph: What to differentiate. Its operators must have gradients on the way from the seeds to what is asked for.
        seeds: Values of the graph by name, and for each the value, also of the graph, that is its gradient.
        of: Names of the values whose gradients are wanted; None for every trainable constant.

    Returns:
        The graph with the gradients behind its own outputs. A gradient with several parts is added up in the order of the nodes
        that read the value, the last first.

    Raises:
        BadParamError: an operator has no gradient, or a value has none because no seed depends on it; the message names it.
    """
    of = tuple(one.name for one in graph.constants if one.role is Role.TRAINABLE) if of is None else tuple(of)
    concerned = set(of)  # what depends on one of these
    for node in graph.nodes:
        if concerned.intersection(node.reads):
            concerned.update(node.outputs)
    gradients: dict[str, str] = dict(seeds)
    tape = _Tape(graph)
    for node in reversed(graph.nodes):
        given = [gradients.get(name) for name in node.outputs]
        if not any(given) or not concerned.intersection(node.reads):
            continue
        tape.reason = node.name
        met: set[str] = set()
        partials: list[str | None] = []
        for name in node.inputs:
            partials.append(None if name is None or name in met else gradients.get(name))
            met.add(name or "")
        wanted = frozenset(place for place, name in enumerate(node.inputs) if name in concerned)
        step = BackwardStep(tape, node.inputs, node.outputs, tuple(given), wanted, tuple(partials))
        try:
            found = node.operator.gradient(step)
        except BadParamError as error:
            raise BadParamError(f"net {graph.name!r}: node {node.name!r}: {error}") from error
        met.clear()
        for name, gradient in zip(node.inputs, found, strict=False):
            if name is None or gradient is None:
                continue
            gradients[name] = tape.total(gradients[name], gradient) if name in met else gradient
            met.add(name)
    if missing := [name for name in of if name not in gradients]:
        raise BadParamError(
            f"net {graph.name!r}: no seed depends on {', '.join(map(repr, missing))}, or only by what has no slope, "
            "so it cannot be trained"
        )
    wanted_gradients = {name: gradients[name] for name in of}
    outputs = (*graph.outputs, *dict.fromkeys(wanted_gradients.values()))
    return Differentiated(graph.rewritten((*graph.nodes, *tape.nodes), outputs=outputs), wanted_gradients)
