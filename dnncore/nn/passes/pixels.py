"""A net that reads pixels of 8 bits: its first node does the arithmetic, and a quarter of the bytes go to the device.

pixels --> image_normalization --> convolution        from_pixels
pixels --> image_convolution                          fuse_pixels, in 16 bits
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn.graph import Constant, Graph, Node, Role, Value
from dnncore.nn.model import Model
from dnncore.nn.operators import Cast, ImageConvolution, ImageNormalization
from dnncore.nn.passes.readers import only_reader, plain_convolution
from dnncore.preprocessing import Normalization

__all__ = ["from_pixels", "fuse_pixels"]

_NARROW = (DType.FLOAT16, DType.BFLOAT16)


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


def fuse_pixels(model: Model) -> Model:
    """Let a convolution of 16 bits look pixels up while it loads them, where it alone reads what they become.

    The bits stay the same. Not in float32, for which no kernel does that; nor with a mean image, a residual or groups.
    """
    graph = model.graph
    heads = {taker.name: node for node in graph.nodes if (taker := _taker(graph, node)) is not None}
    gone = {head.name for head in heads.values()}
    nodes = [
        _fused(heads[node.name], node) if node.name in heads else node for node in graph.nodes if node.name not in gone
    ]
    return Model(graph.rewritten(nodes), model.weights)


def _taker(graph: Graph, node: Node) -> Node | None:
    """The convolution that can do what a normalisation of pixels does; None where there is none."""
    if not isinstance(node.operator, ImageNormalization) or node.operator.order or len(node.reads) != 2:
        return None
    (image,) = node.outputs
    reader = only_reader(graph, image)
    if reader is not None and isinstance(reader.operator, ImageConvolution):  # a cast has become part of it
        return reader
    return plain_convolution(graph, image) if graph.values[image].dtype in _NARROW else None


def _fused(head: Node, reader: Node) -> Node:
    (pixels, table), (_, weight, *others), conv = head.reads, reader.inputs, reader.operator
    bias = others[1:] if isinstance(conv, ImageConvolution) else others[:1]
    operator = ImageConvolution(**conv.attributes)  # those of a convolution, fused or not
    return Node(reader.name, operator, (pixels, weight, table, *bias), reader.outputs)


def _operands(normalization: Normalization) -> dict[str, np.ndarray]:
    table, mean = normalization.operands()
    return {"table": table} if mean is None else {"table": table, "mean": mean}


def _only_cast(graph: Graph, name: str) -> Node | None:
    """The cast that alone reads an input, to a dtype that the normalisation can give; None where something else does."""
    readers = graph.consumers[name]
    if len(readers) != 1 or not isinstance(readers[0].operator, Cast):
        return None
    (result,) = readers[0].outputs
    known = graph.values[result].dtype in _NARROW and result not in graph.outputs
    return readers[0] if known else None
