"""A net with what training needs to know beside it: where its losses are, and what its file says of single constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dnncore.errors import BadParamError
from dnncore.nn.graph import Graph
from dnncore.nn.heads import Head, outputs_of, pruned, with_flat_outputs, with_logits

__all__ = ["Multipliers", "Trainable"]


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Factors of one constant's learning rate and weight decay: Caffe's lr_mult and decay_mult. Immutable."""

    lr: float = 1.0
    decay: float = 1.0


@dataclass(frozen=True)
class Trainable:
    """A classifier as it is trained. Immutable.

    Args:
        graph: Its outputs are the heads' logits [N, K], in their order, and what else their losses are of, each once.
        heads: The first is what the net is for, and tells classes apart; the others are auxiliary, there for their gradients, and
            not served.
        multipliers: By the names of constants; 1 for those that are not among them.
        frozen: Names of constants that training leaves as they are, whatever their roles, which stay what they were for the next.

    Raises:
        BadParamError: graph and heads do not fit each other, or the heads tell different numbers of classes apart.
    """

    graph: Graph
    heads: tuple[Head, ...]
    multipliers: Mapping[str, Multipliers] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if outputs_of(self.heads) != self.graph.outputs or not self.heads[0].loss.of_classes:
            raise BadParamError(f"net {self.graph.name!r} gives {self.graph.outputs}, its heads are {self.heads}")
        if len({(head.logits, head.loss) for head in self.heads}) < len(self.heads):
            raise BadParamError(f"net {self.graph.name!r} has a loss of the same logits twice: {self.heads}")
        classifiers = [head.logits for head in self.heads if head.loss.of_classes]
        if len(shapes := {self.graph.values[name].shape for name in classifiers}) > 1:
            raise BadParamError(f"net {self.graph.name!r} has heads for different numbers of classes: {sorted(shapes)}")
        if unknown := sorted((self.multipliers.keys() | self.frozen) - self.graph.constant.keys()):
            raise BadParamError(f"net {self.graph.name!r} has no constants {', '.join(unknown)}")

    @classmethod
    def of(
        cls, graph: Graph, auxiliary_weight: float = 0.3, multipliers: Mapping[str, Multipliers] | None = None
    ) -> Trainable:
        """A net whose first output is its own and whose others, if there are any, are those of auxiliary heads.

        Args:
            graph: Softmaxes at its ends are left out.
            auxiliary_weight: Of each auxiliary loss; 0 leaves those heads out.
            multipliers: As in the constructor.

        Raises:
            BadParamError: an output is no classifier's.
        """
        if auxiliary_weight == 0:
            graph = pruned(graph.rewritten(graph.nodes, outputs=graph.outputs[:1]))
        graph = with_flat_outputs(with_logits(graph))
        own, *others = graph.outputs
        heads = (Head(own), *(Head(name, auxiliary_weight) for name in others))
        return cls(graph, heads, multipliers or {})

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.graph.values[self.graph.outputs[0]].shape[1])

    @cached_property
    def served(self) -> Graph:
        """The net without its auxiliary heads."""
        return pruned(self.graph.rewritten(self.graph.nodes, outputs=self.graph.outputs[:1]))
