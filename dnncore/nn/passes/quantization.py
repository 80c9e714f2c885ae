"""A net in whole numbers of 8 bits, but for its ends.

x --> conv --> max pool --> conv --> average        x --> quantize --> conv --> max pool --> conv --> dequantize --> average

Layers between the first and the last read and write int8, and so do maxima, concatenations and views between them; what lies in one
concatenation, or in views of one value, has one scale. All other nodes stay as they are, between quantize and dequantize.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dnncore.dtypes import DType
from dnncore.nn.calibration import LARGEST, Calibration
from dnncore.nn.graph import Constant, Graph, Node, Role
from dnncore.nn.model import Model
from dnncore.nn.operator import Operator
from dnncore.nn.operators import (
    Concat,
    Convolution,
    Dequantize,
    Flatten,
    FusedConvolution,
    FusedInnerProduct,
    GlobalPooling,
    Identity,
    InnerProduct,
    Pooling,
    Quantize,
    QuantizedConvolution,
    QuantizedInnerProduct,
    Reshape,
    Slice,
    Split,
    Transpose,
)

__all__ = ["quantize"]

_CHANNELS = 16
"""What channels and filters are multiples of: the bytes that tensor cores' operands begin at."""

_MOVES = (Concat, Flatten, Identity, Reshape, Slice, Split, Transpose)
_LAYERS = (Convolution, FusedConvolution, InnerProduct, FusedInnerProduct)


def quantize(model: Model, calibration: Calibration) -> Model:
    """Let convolutions of one group and inner products compute with int8: weights with a scale for each filter, values with one.

    The first layers and the last stay as they are, and so do those whose channels and filters are no multiples of 16.

    Args:
        model: In float32, as the passes of `PASSES` leave it.
        calibration: Of that model.

    Raises:
        BadParamError: the calibration lacks a value.
    """
    graph = model.graph
    layers = {node.name for node in _between_the_ends(graph) if _suits(graph, node)}
    if not layers:
        return model
    whole = _whole_values(graph, layers)
    writer = _Writer(model, whole, _scales(graph, layers, whole, calibration))
    for node in graph.nodes:
        if node.name in layers:
            writer.add_layer(node)
        elif node.outputs[0] in whole:
            writer.add_whole(node)
        else:
            writer.add_real(node)
    return writer.model()


def _between_the_ends(graph: Graph) -> list[Node]:
    """Layers with weights that others come before and after."""
    before, after = _reached(graph.nodes, forward=True), _reached(reversed(graph.nodes), forward=False)
    return [node for node in graph.nodes if _has_weights(node) and before[node.name] and after[node.name]]


def _reached(nodes: Iterable[Node], *, forward: bool) -> dict[str, bool]:
    """By the name of a node, whether its operands (backward: its results) depend on a layer with weights (a layer on them)."""
    values: dict[str, bool] = {}
    found = {}
    for node in nodes:
        sources, sinks = (node.reads, node.outputs) if forward else (node.outputs, node.reads)
        found[node.name] = any(values.get(name, False) for name in sources)
        for name in sinks:
            values[name] = values.get(name, False) or found[node.name] or _has_weights(node)
    return found


def _has_weights(node: Node) -> bool:
    return isinstance(node.operator, Convolution | InnerProduct)


def _suits(graph: Graph, node: Node) -> bool:
    if type(node.operator) not in _LAYERS:
        return False
    x, weight = (graph.values[name] for name in node.reads[:2])
    filters, channels = weight.shape[:2]
    assert isinstance(filters, int)
    assert isinstance(channels, int)
    fits = filters % _CHANNELS == 0 and channels % _CHANNELS == 0
    is_float = x.dtype is weight.dtype is DType.FLOAT32
    is_known = weight.name in graph.constant and x.name not in graph.constant
    return fits and is_float and is_known and getattr(node.operator, "groups", 1) == 1


def _is_exact(operator: Operator) -> bool:
    """Whether its results are elements of its operands."""
    return isinstance(operator, _MOVES) or (isinstance(operator, Pooling | GlobalPooling) and operator.mode == "max")


def _whole_values(graph: Graph, layers: set[str]) -> set[str]:
    """Those that are computed as int8: by layers, or of such alone by what moves elements about."""
    whole: set[str] = set()
    for node in graph.nodes:
        if node.name in layers or (_is_exact(node.operator) and whole.issuperset(node.reads)):
            whole.update(node.outputs)
    return whole


def _scales(graph: Graph, layers: set[str], whole: set[str], calibration: Calibration) -> dict[str, float]:
    """What 1 stands for in every value that is int8 somewhere; one number for values that share elements."""
    groups = {name: {name} for name in whole}
    for node in graph.nodes:
        if node.name not in layers and node.outputs[0] in whole:
            together = set().union(*(groups[name] for name in (*node.reads, *node.outputs)))
            groups |= dict.fromkeys(together, together)
        elif node.name in layers:
            groups |= {name: {name} for name in _read_as_int8(node) if name not in whole}
    return {name: calibration.scale(group) for name, group in groups.items()}


def _read_as_int8(node: Node) -> tuple[str, ...]:
    """A layer's x and its residual."""
    return tuple(name for name in (node.inputs[0], *node.inputs[3:]) if name is not None)


class _Writer:
    """The graph that is being written. Owned by one thread.

    Args:
        model: The one before.
        whole: Values that are computed as int8.
        scales: By value.
    """

    def __init__(self, model: Model, whole: set[str], scales: dict[str, float]) -> None:
        self._graph, self._whole, self._scales = model.graph, whole, scales
        self._weights = dict(model.weights)
        self._constants = list(model.graph.constants)
        self._nodes: list[Node] = []
        self._int8: dict[str, str] = {}  # names of values as int8
        self._real: set[str] = set()  # whole values that have been dequantized
        self._taken: list[str] = []

    def model(self) -> Model:
        for name in self._graph.outputs:
            self._as_real(name)
        graph = self._graph.rewritten(self._nodes, constants=self._constants)
        return Model(graph, {name: self._weights[name] for name in graph.constant})

    def add_layer(self, node: Node) -> None:
        """A convolution or an inner product in whole numbers."""
        x, weight, bias, residual = (*node.inputs, None, None)[:4]
        assert x is not None
        assert weight is not None
        (result,) = node.outputs
        inputs: list[str | None] = [self._as_int8(x), *self._quantized_weight(weight, self._scales[x]), bias]
        if residual is not None:
            inputs.append(self._as_int8(residual))
        operator, y_scale = node.operator, self._scales[result]
        fused = operator if isinstance(operator, FusedConvolution | FusedInnerProduct) else FusedInnerProduct()
        if isinstance(operator, Convolution):
            changed: Operator = QuantizedConvolution(
                operator.stride,
                operator.padding,
                operator.dilation,
                y_scale=y_scale,
                residual_scale=1.0 if residual is None else self._scales[residual],
                activation=fused.activation,
                coefficient=fused.coefficient,
            )
        else:
            changed = QuantizedInnerProduct(y_scale=y_scale, activation=fused.activation, coefficient=fused.coefficient)
        self._add(node, changed, inputs)

    def add_whole(self, node: Node) -> None:
        """What moves elements about, in whole numbers."""
        self._add(node, node.operator, [self._as_int8(name) for name in node.reads])

    def add_real(self, node: Node) -> None:
        """Anything else, as it is."""
        for name in node.reads:
            self._as_real(name)
        self._nodes.append(node)

    def _add(self, node: Node, operator: Operator, inputs: Sequence[str | None]) -> None:
        for name in node.outputs:
            self._int8[name] = self._free(f"{name}.int8")
        outputs = tuple(self._int8[name] for name in node.outputs)
        self._nodes.append(Node(node.name, operator, tuple(inputs), outputs))

    def _as_int8(self, name: str) -> str:
        if name not in self._int8:
            self._int8[name] = quantized = self._free(f"{name}.int8")
            self._nodes.append(Node(quantized, Quantize(self._scales[name]), (name,), (quantized,)))
        return self._int8[name]

    def _as_real(self, name: str) -> None:
        if name in self._whole and name not in self._real:
            self._real.add(name)
            node = self._free(f"{name}.dequantized")
            self._nodes.append(Node(node, Dequantize(self._scales[name]), (self._int8[name],), (name,)))

    def _quantized_weight(self, name: str, x_scale: float) -> tuple[str, str]:
        """Names of the weights as int8 [K, ...] and of what a product of 1 stands for [K]."""
        array = self._weights[name]
        largest = np.abs(array).reshape(len(array), -1).max(1).astype(np.float64)
        steps = np.where(largest > 0, largest, 1.0) / LARGEST
        weight = np.rint(array / steps.reshape(-1, *(1,) * (array.ndim - 1)))
        return (
            self._constant(f"{name}.int8", weight.astype(np.int8)),
            self._constant(f"{name}.scale", (x_scale * steps).astype(np.float32)),
        )

    def _constant(self, wanted: str, array: np.ndarray) -> str:
        name = self._free(wanted)
        self._constants.append(Constant(name, array.shape, DType.of(array.dtype), role=Role.FIXED))
        self._weights[name] = array
        return name

    def _free(self, wanted: str) -> str:
        name = self._graph.free_name(wanted, self._taken)
        self._taken.append(name)
        return name
