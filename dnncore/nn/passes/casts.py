"""A net in 16 bits is given float32: its first convolution rounds images while it loads them.

images --> cast --> convolution          image_convolution
"""

from __future__ import annotations

from dnncore.dtypes import DType
from dnncore.nn.graph import Graph, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Cast, ImageConvolution
from dnncore.nn.passes.readers import plain_convolution

__all__ = ["fuse_cast"]

_NARROW = (DType.FLOAT16, DType.BFLOAT16)
_CHANNELS = range(1, 5)


def fuse_cast(model: Model) -> Model:
    """Make one node of a cast of images to 16 bits and the convolution that alone reads its result.

    The bits stay the same. Images have up to four channels; the convolution has one group and no residual. Where no kernel rounds
    while it loads, an executor casts some images at a time, as it would have done before.
    """
    graph = model.graph
    takers = {taker.name: node for node in graph.nodes if (taker := _taker(graph, node)) is not None}
    gone = {cast.name for cast in takers.values()}
    nodes = [
        _fused(takers[node.name], node) if node.name in takers else node
        for node in graph.nodes
        if node.name not in gone
    ]
    return Model(graph.rewritten(nodes), model.weights)


def _taker(graph: Graph, node: Node) -> Node | None:
    """The convolution that can do what a cast does; None where there is none."""
    if not isinstance(node.operator, Cast):
        return None
    given, (cast,) = graph.values[node.reads[0]], node.outputs
    is_image = given.dtype is DType.FLOAT32 and len(given.shape) == 4 and given.shape[1] in _CHANNELS
    return plain_convolution(graph, cast) if is_image and graph.values[cast].dtype in _NARROW else None


def _fused(cast: Node, reader: Node) -> Node:
    (_, weight, *others), conv = reader.inputs, reader.operator
    bias = [name for name in others[:1] if name is not None]
    operator = ImageConvolution(**conv.attributes)  # those of a convolution, fused or not
    return Node(reader.name, operator, (*cast.inputs, weight, *((None, *bias) if bias else ())), reader.outputs)
