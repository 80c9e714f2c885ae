"""What passes ask about the convolutions that blocks of layers are made of: of which kind they are, and what follows them."""

from __future__ import annotations

from dnncore.dtypes import DType
from dnncore.nn.graph import Graph, Node
from dnncore.nn.operators import Convolution, FusedConvolution

__all__ = ["Follows", "both", "follows", "is_convolution", "is_pointwise", "residual"]

_NARROW = (DType.FLOAT16, DType.BFLOAT16)

Follows = tuple[str | None, float]
"""An activation by name, and its coefficient."""


def is_convolution(graph: Graph, node: Node) -> bool:
    """Of 16 bits, whatever follows it."""
    return type(node.operator) in (Convolution, FusedConvolution) and graph.values[node.outputs[0]].dtype in _NARROW


def is_pointwise(graph: Graph, node: Node) -> bool:
    """A convolution by filters of 1 x 1, of all pixels."""
    if not is_convolution(graph, node):
        return False
    settings = node.operator.attributes
    steps = (both(settings["stride"]), both(settings["padding"]), settings["groups"])
    return steps == (1, 0, 1) and graph.values[node.reads[1]].shape[2:] == (1, 1)


def both(setting: object) -> object:
    """A setting of both axes as one number, where it is one."""
    if isinstance(setting, tuple) and len(setting) == 2 and setting[0] == setting[1]:
        return both(setting[0])
    return setting


def follows(node: Node) -> Follows:
    """A convolution's activation."""
    operator = node.operator
    return (operator.activation, operator.coefficient) if isinstance(operator, FusedConvolution) else (None, 0.0)


def residual(node: Node) -> str | None:
    """What a convolution adds."""
    return (*node.inputs, None, None)[3]
