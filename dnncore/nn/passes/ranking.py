"""A classifier that ranks: its last nodes find the most probable classes, so that these alone need go to the host."""

from __future__ import annotations

from dnncore.errors import BadParamError
from dnncore.nn.graph import Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Flatten, TopK

__all__ = ["rank_classes"]


def rank_classes(model: Model, count: int) -> Model:
    """Let a net of one output also give the largest elements of each row of it, in order, and their indices.

    Args:
        model: Its only output is floating-point [N, K], or [N, K, ...] with K elements per image.
        count: How many are wanted; all where there are fewer.

    Returns:
        The net with two more outputs, whose names end in ".values" and ".classes", int32, both [N, count]. Which of the three are
        copied to the host is up to who runs it (`Executor.run`).

    Raises:
        BadParamError: it has several outputs, or one of another kind, or fewer than one element is wanted.
    """
    graph = model.graph
    scores, *others = (graph.values[name] for name in graph.outputs)
    classes = [extent for extent in scores.shape[1:] if extent != 1] or [1]
    if others or not scores.dtype.is_floating or len(scores.shape) < 2 or len(classes) > 1 or count < 1:
        given = ", ".join(map(str, (scores, *others)))
        raise BadParamError(
            f"net {graph.name!r} gives {given}; to rank {count} of its classes, one number for each is needed"
        )
    flat = Node(
        graph.free_name(f"{scores.name}.flat"), Flatten(), (scores.name,), (graph.free_name(f"{scores.name}.row"),)
    )
    ranked = tuple(graph.free_name(f"{scores.name}.{part}") for part in ("values", "classes"))
    ranking = Node(graph.free_name(f"{scores.name}.ranking"), TopK(min(count, int(classes[0]))), flat.outputs, ranked)
    return Model(graph.rewritten((*graph.nodes, flat, ranking), outputs=(*graph.outputs, *ranked)), model.weights)
