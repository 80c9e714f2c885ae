"""Max pooling that becomes part of the convolution before it, so that what lies between is never stored whole.

conv 3x3 --> max pooling 2x2          pooled_convolution
"""

from __future__ import annotations

from dataclasses import replace

from dnncore.descriptors import ConvolutionDescriptor, PoolingDescriptor
from dnncore.dtypes import DType
from dnncore.nn.graph import Graph, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import Convolution, FusedConvolution, PooledConvolution, Pooling

__all__ = ["fuse_pooling"]

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_WINDOWS = PoolingDescriptor.make("max", 2)


def fuse_pooling(model: Model) -> Model:
    """Make one node of a 3x3 convolution and the 2x2 max pooling that alone reads its result.

    What is pooled is rounded as before. In 16 bits a kernel may pool what is still on the chip. An executor computes the node layer
    by layer where none does, as in float32, or where that is faster by estimate; the convolution's result is scratch memory then,
    and may be that of a part of the batch.
    """
    graph = model.graph
    pooled: dict[str, Node] = {}  # by the name of the node in whose place it stands
    gone: set[str] = set()
    for conv in graph.nodes:
        pooling = _pooling(graph, conv)
        if pooling is not None:
            operator = PooledConvolution(**conv.operator.attributes)  # those of a convolution, fused or not
            pooled[pooling.name] = Node(conv.name, operator, conv.inputs[:3], pooling.outputs)
            gone.add(conv.name)
    nodes = [pooled.get(node.name, node) for node in graph.nodes if node.name not in gone]
    return Model(graph.rewritten(nodes), model.weights)


def _pooling(graph: Graph, conv: Node) -> Node | None:
    """The node that pools a convolution's result; None where they stay two."""
    if type(conv.operator) not in (Convolution, FusedConvolution) or not _is_3x3(graph, conv):
        return None
    (result,), (_, _, _, residual) = conv.outputs, (*conv.inputs, None, None)[:4]
    value, readers = graph.values[result], graph.consumers[result]
    are_even = all(isinstance(extent, int) and extent % 2 == 0 for extent in value.shape[2:])
    if residual is not None or value.dtype not in _DTYPES or not are_even:
        return None
    if len(readers) != 1 or result in graph.outputs or not isinstance(readers[0].operator, Pooling):
        return None
    windows = replace(
        readers[0].operator.descriptor, ceil_mode=False
    )  # windows of 2 over even extents leave nothing to round
    return readers[0] if windows == _WINDOWS else None


def _is_3x3(graph: Graph, conv: Node) -> bool:
    """Whether it has 3x3 taps and one group, and its filters go to every place."""
    settings, weight = conv.operator.attributes, graph.values[conv.reads[1]].shape
    if len(weight) != 4 or weight[2:] != (3, 3) or settings["groups"] != 1:
        return False
    steps = ConvolutionDescriptor.make(stride=settings["stride"], dilation=settings["dilation"])
    return steps == ConvolutionDescriptor.make()
