"""Graphs as JSON: operators by their registered names, what nothing says by default values left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.errors import PackageError
from dnncore.nn.graph import Constant, Graph, Node, Role, Value
from dnncore.nn.operators import operator_of, registered_name

__all__ = ["from_document", "to_document"]


def to_document(graph: Graph) -> dict[str, Any]:
    """What `json.dumps` takes; what the constants begin with before training is not in it."""
    return {
        "name": graph.name,
        "inputs": [_of_value(value) for value in graph.inputs],
        "outputs": list(graph.outputs),
        "nodes": [
            {
                "name": node.name,
                "operator": registered_name(node.operator),
                "attributes": node.operator.attributes,
                "inputs": list(node.inputs),
                "outputs": list(node.outputs),
            }
            for node in graph.nodes
        ],
        "constants": [
            {
                "name": constant.name,
                "dtype": constant.dtype.value,
                "shape": list(constant.shape),
                "role": constant.role.value,
            }
            for constant in graph.constants
        ],
        "updates": dict(graph.updates),
        "layouts": {name: layout.value for name, layout in graph.layouts.items()},
    }


def _of_value(value: Value) -> dict[str, Any]:
    return {"name": value.name, "dtype": value.dtype.value, "shape": list(value.shape)}


def from_document(document: Mapping[str, Any]) -> Graph:
    """The graph that a document describes.

    Raises:
        UnknownLayerError: it uses operators that this version does not have; the message names the nodes.
        BadParamError: it makes no sense; the message names the node.
        KeyError, TypeError, ValueError: it is malformed.
    """
    return Graph(
        str(document["name"]),
        tuple(_value(value) for value in document["inputs"]),
        _names(document["outputs"]),
        tuple(_node(node) for node in document["nodes"]),
        tuple(_constant(constant) for constant in document["constants"]),
        {str(name): Layout(layout) for name, layout in document["layouts"].items()},
        {str(name): str(new) for name, new in document["updates"].items()},
    )


def _value(document: Mapping[str, Any]) -> Value:
    shape = tuple(extent if isinstance(extent, str) else int(extent) for extent in document["shape"])
    return Value(str(document["name"]), DType.of(document["dtype"]), shape)


def _constant(document: Mapping[str, Any]) -> Constant:
    shape = tuple(int(extent) for extent in document["shape"])
    return Constant(str(document["name"]), shape, DType.of(document["dtype"]), Role(document["role"]))


def _node(document: Mapping[str, Any]) -> Node:
    try:
        operator = operator_of(document["operator"], document["attributes"])
    except PackageError as error:
        raise type(error)(f"node {document['name']!r}: {error}") from error
    inputs = tuple(None if name is None else str(name) for name in document["inputs"])
    return Node(str(document["name"]), operator, inputs, _names(document["outputs"]))


def _names(document: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(document, str):
        raise TypeError(f"a list of names is needed, {document!r} is none")
    return tuple(str(name) for name in document)
