"""Nets as model packages of version 1 have them: one input, one output, eight kinds of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dnncore.errors import BadParamError, PackageError, UnknownLayerError
from dnncore.nn.builder import NetBuilder
from dnncore.nn.graph import BATCH, Graph

__all__ = ["FORMAT_VERSION", "graph_of"]

FORMAT_VERSION = 1
"""Of the packages that are read here."""


def _add(net: NetBuilder, name: str, a: str, b: str) -> str:
    return net.plus(name, a, b)


def _convolution(
    net: NetBuilder, name: str, x: str, *, num_output: int, kernel: tuple[int, ...], **settings: Any
) -> str:
    return net.convolution(name, x, num_output, kernel, **settings)


def _inner_product(net: NetBuilder, name: str, x: str, *, num_output: int, bias: bool = True) -> str:
    return net.inner_product(name, x, num_output, bias=bias)


def _pooling(net: NetBuilder, name: str, x: str, *, mode: str, window: tuple[int, ...], **settings: Any) -> str:
    return net.pooling(name, x, mode, window, **settings)


def _relu(net: NetBuilder, name: str, x: str) -> str:
    return net.relu(name, x)


def _sigmoid(net: NetBuilder, name: str, x: str) -> str:
    return net.activation(name, x, "sigmoid")


def _softmax(net: NetBuilder, name: str, x: str) -> str:
    return net.softmax(name, x)


def _tanh(net: NetBuilder, name: str, x: str) -> str:
    return net.activation(name, x, "tanh")


_LAYERS: dict[str, Callable[..., str]] = {
    "Add": _add,
    "Convolution": _convolution,
    "InnerProduct": _inner_product,
    "Pooling": _pooling,
    "ReLU": _relu,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "TanH": _tanh,
}


def graph_of(document: Mapping[str, Any]) -> Graph:
    """The graph of a net of version 1.

    Raises:
        UnknownLayerError: it has a layer that version 1 has not.
        PackageError: settings do not belong to their layer; the message names the node.
        BadParamError: it makes no sense; the message names the node.
        KeyError, TypeError, ValueError: it is malformed.
    """
    net = NetBuilder(str(document["name"]))
    known = {net.input(str(document["input"]["name"]), (BATCH, *(int(e) for e in document["input"]["shape"])))}
    last = ""
    for node in document["nodes"]:
        name, kind, inputs = str(node["name"]), node["type"], [str(one) for one in node["inputs"]]
        if kind not in _LAYERS:
            raise UnknownLayerError(f"node {name!r} has type {kind!r}; version 1 knows {', '.join(_LAYERS)}")
        if missing := [one for one in inputs if one not in known]:
            raise BadParamError(f"node {name!r} reads {missing[0]!r}, which no earlier node writes")
        settings = {key: tuple(value) if isinstance(value, list) else value for key, value in node["settings"].items()}
        try:
            last = _LAYERS[kind](net, name, *inputs, **settings)
        except TypeError as error:
            raise PackageError(f"node {name!r} ({kind}): {error}") from error
        except BadParamError as error:
            raise BadParamError(f"node {name!r} ({kind}): {error}") from error
        known.add(last)
    return net.build(last)
