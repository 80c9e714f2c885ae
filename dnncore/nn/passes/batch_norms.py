"""Batch normalisation with given statistics is an affine map of each channel: the convolution before it can do that itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnncore.nn.graph import Constant, Graph, Node, Role
from dnncore.nn.model import Model
from dnncore.nn.operators import BatchNorm, Convolution, InnerProduct

__all__ = ["fold_batch_norms"]


def fold_batch_norms(model: Model) -> Model:
    """Multiply filters, and shift biases, by what the normalisation behind them would do.

    Only where nothing else reads what the convolution, or inner product, gives, or its weights. The folded weights are computed in
    float64 and rounded once to their dtype, so results differ in the last bits.
    """
    graph, weights = model.graph, dict(model.weights)
    constants = graph.constant.copy()
    folded: dict[str, Node] = {}  # by the name of the convolution
    gone: set[str] = set()
    for node in graph.nodes:
        before = _foldable(graph, node)
        if before is None:
            continue
        assert isinstance(node.operator, BatchNorm)
        scale, shift, mean, variance = (weights[name].astype(np.float64) for name in node.reads[1:5])
        factor = scale / np.sqrt(variance + node.operator.epsilon)
        x, weight, bias = (*before.inputs, None)[:3]
        assert weight is not None
        constant = constants[weight]
        array = weights[weight]
        weights[weight] = (array * factor.reshape(-1, *(1,) * (array.ndim - 1))).astype(array.dtype)
        old = weights[bias].astype(np.float64) if bias is not None else np.zeros_like(factor)
        name = graph.free_name(f"{node.name}.folded", constants)
        constants[name] = Constant(name, factor.shape, constant.dtype, Role.FIXED)
        weights[name] = ((old - mean) * factor + shift).astype(array.dtype)
        folded[before.name] = replace(before, inputs=(x, weight, name), outputs=node.outputs)
        gone.add(node.name)
    nodes = [folded.get(node.name, node) for node in graph.nodes if node.name not in gone]
    rewritten = graph.rewritten(nodes, constants=constants.values())
    return Model(rewritten, {name: weights[name] for name in rewritten.constant})


def _foldable(graph: Graph, norm: Node) -> Node | None:
    """The node before a normalisation, where it can take its place."""
    if not isinstance(norm.operator, BatchNorm):
        return None
    x, *parameters = norm.reads
    before = graph.producer.get(x)
    if before is None or type(before.operator) not in (Convolution, InnerProduct) or not graph.is_only_read_by(x, norm):
        return None
    weight = before.reads[1]
    own = all(name in graph.constant for name in (*parameters, *before.reads[1:]))
    return before if own and graph.is_only_read_by(weight, before) else None
