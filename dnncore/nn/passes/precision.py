"""A net in 16 bits: what it reads and gives stays as it was, what lies between is narrower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnncore.dtypes import DType
from dnncore.nn.graph import Graph, Node
from dnncore.nn.model import Model
from dnncore.nn.operators import (
    BatchNorm,
    Cast,
    Convolution,
    Dequantize,
    ImageNormalization,
    InnerProduct,
    QuantizedConvolution,
    QuantizedInnerProduct,
)

__all__ = ["in_precision"]

_WIDE = {
    BatchNorm: frozenset({1, 2, 3, 4, 5}),
    Convolution: frozenset({2}),
    ImageNormalization: frozenset({1, 2}),
    InnerProduct: frozenset({2}),
    QuantizedConvolution: frozenset({2, 3}),
    QuantizedInnerProduct: frozenset({2, 3}),
}
"""Inputs that stay in float32, because the operations add them before they round."""


def in_precision(model: Model, dtype: DType) -> Model:
    """Cast float32 inputs and constants to another dtype, as well as what becomes float32 inside, and what comes out back.

    Biases, and the parameters of batch normalisations, stay in float32.

    Args:
        model: In float32.
        dtype: FLOAT16 or BFLOAT16; FLOAT32 leaves everything as it is.
    """
    if dtype is DType.FLOAT32:
        return model
    graph = model.graph
    kept = _stay_wide(graph)
    narrow = {name for name, one in graph.constant.items() if one.dtype is DType.FLOAT32 and name not in kept}
    constants = [replace(one, dtype=dtype) if one.name in narrow else one for one in graph.constants]
    weights = {name: _rounded(array, dtype) if name in narrow else array for name, array in model.weights.items()}
    cast: dict[str, str] = {}
    nodes: list[Node] = []
    for value in graph.inputs:
        if value.dtype is DType.FLOAT32:
            cast[value.name] = graph.free_name(f"{value.name}.{dtype.value}")
            nodes.append(Node(cast[value.name], Cast(dtype.value), (value.name,), (cast[value.name],)))
    handed_out = {name: graph.free_name(f"{name}.{dtype.value}") for name in graph.outputs if name in graph.producer}
    cast |= handed_out
    for node in graph.nodes:
        inputs = tuple(None if name is None else cast.get(name, name) for name in node.inputs)
        outputs = tuple(cast.get(name, name) for name in node.outputs)
        operator = node.operator
        if isinstance(operator, ImageNormalization | Dequantize):
            operator = replace(operator, dtype=dtype.value)
        elif operator == Cast(DType.FLOAT32.value):
            operator = Cast(dtype.value)
        nodes.append(Node(node.name, operator, inputs, outputs))
    for name, inner in handed_out.items():
        back = graph.values[name].dtype.value
        nodes.append(Node(graph.free_name(f"{name}.{back}"), Cast(back), (inner,), (name,)))
    return Model(graph.rewritten(nodes, constants=constants), weights)


def _stay_wide(graph: Graph) -> set[str]:
    found: set[str] = set()
    for node in graph.nodes:
        for kind, places in _WIDE.items():
            if isinstance(node.operator, kind):
                found |= {name for i, name in enumerate(node.inputs) if i in places and name is not None}
    return found


def _rounded(array: np.ndarray, dtype: DType) -> np.ndarray:
    return array.astype(dtype.numpy)
