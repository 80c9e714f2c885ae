"""A net that reads pixels of 8 bits: its first node does the arithmetic, and a quarter of the bytes go to the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn.graph import Constant, Graph, Node, Role, Value
from dnncore.nn.model import Model
from dnncore.nn.operators import Cast, ImageNormalization
from dnncore.preprocessing import Normalization

__all__ = ["from_pixels"]


def from_pixels(model: Model, normalization: Normalization) -> Model:
    """Let a net of images read uint8 [N, H, W, C], channels in its own order, under the name of the input that it has.

    Without a mean image the net computes the bits that it computes from what the host normalises. Where the first thing to happen
    to the input is a cast to 16 bits, the node gives these, in the layout of the cast's result: run this pass last.

    Args:
        model: Its first input is float32 [N, C, H, W].
        normalization: That of its preprocessing.

    Raises:
        BadParamError: the input is not of that kind, or is handed out.
    """
    graph = model.graph
    value, *others = graph.inputs
    if value.dtype is not DType.FLOAT32 or len(value.shape) != 4 or value.shape[1] != normalization.channels:
        raise BadParamError(f"net {graph.name!r} reads {value}; float32[N, {normalization.channels}, H, W] is needed")
    if value.name in graph.outputs:
        raise BadParamError(f"net {graph.name!r} hands its input {value.name!r} out, which would be pixels")
    batch, channels, height, width = value.shape
    cast = _only_cast(graph, value.name)
    image = graph.free_name(f"{value.name}.normalized") if cast is None else cast.outputs[0]
    dtype = "float32" if cast is None else graph.values[image].dtype.value
    found = {f"{value.name}.{what}": array for what, array in _operands(normalization).items()}
    names = {graph.free_name(name): array for name, array in found.items()}
    head = Node(
        graph.free_name(f"{value.name}.normalization"),
        ImageNormalization(dtype=dtype),
        (value.name, *names),
        (image,),
    )
    nodes = [
        replace(node, inputs=tuple(image if name == value.name else name for name in node.inputs))
        for node in graph.nodes
        if node is not cast
    ]
    rewritten = graph.rewritten(
        (head, *nodes),
        constants=(*graph.constants, *(Constant(name, array.shape, role=Role.FIXED) for name, array in names.items())),
        inputs=(Value(value.name, DType.UINT8, (batch, height, width, channels)), *others),
    )
    return Model(rewritten, {**model.weights, **names})


def _operands(normalization: Normalization) -> dict[str, np.ndarray]:
    table, mean = normalization.operands()
    return {"table": table} if mean is None else {"table": table, "mean": mean}


def _only_cast(graph: Graph, name: str) -> Node | None:
    """The cast that alone reads an input, to a dtype that the normalisation can give; None where something else does."""
    readers = graph.consumers[name]
    if len(readers) != 1 or not isinstance(readers[0].operator, Cast):
        return None
    (result,) = readers[0].outputs
    known = graph.values[result].dtype in (DType.FLOAT16, DType.BFLOAT16) and result not in graph.outputs
    return readers[0] if known else None
