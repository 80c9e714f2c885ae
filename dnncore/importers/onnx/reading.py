"""ONNX files as protobuf messages, whose nodes are those of functions of their own where they call such."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from dnncore.errors import BadParamError
from dnncore.importers.files import read_bounded
from dnncore.importers.onnx.limits import Limits

__all__ = ["ONNX_DOMAINS", "Opened", "nodes_of", "open_model"]

ONNX_DOMAINS = ("", "ai.onnx")
"""Both name the operators of ONNX itself."""

_MAX_DEPTH = 32


class Opened(NamedTuple):
    """A model that was read. Immutable.

    Args:
        model: The message.
        what: What messages call it.
        folder: Where files with external data are; None where it was no file.
    """

    model: ModelProto
    what: str
    folder: Path | None


def open_model(source: str | Path | bytes | ModelProto, limits: Limits) -> Opened:
    """Read a model.

    Raises:
        BadParamError: it cannot be read, is too large, or is no ONNX model.
    """
    if isinstance(source, ModelProto):
        return Opened(source, f"model {source.graph.name!r}", None)
    if isinstance(source, bytes):
        return Opened(_parsed(source, limits), "model", None)
    path = Path(source)
    try:
        if not path.is_file():
            raise BadParamError("there is no such file")
        data = read_bounded(path, limits.file_bytes)
    except OSError as error:
        raise BadParamError(f"cannot be read: {error}") from error
    return Opened(_parsed(data, limits), str(path), path.parent)


def _parsed(data: bytes, limits: Limits) -> ModelProto:
    if len(data) > limits.file_bytes:
        raise BadParamError(f"has more than {limits.file_bytes} B")
    try:
        model = ModelProto.FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise BadParamError(f"is truncated or no ONNX model: {error}") from error
    if not model.HasField("graph") or not model.opset_import:
        raise BadParamError("is no ONNX model: it has no graph or no opset")
    return model


class _Scope(NamedTuple):
    """What names in the body of a function stand for outside. Immutable."""

    prefix: str
    names: Mapping[str, str]
    attributes: Mapping[str, AttributeProto]

    def name(self, inner: str) -> str:
        return self.names.get(inner, f"{self.prefix}{inner}") if inner else ""


def nodes_of(model: ModelProto, limits: Limits) -> list[NodeProto]:
    """The nodes in order, with the model's own functions written out.

    Raises:
        BadParamError: there are too many, or functions call themselves.
    """
    return list(_Writer(model, limits.nodes).write_out(model.graph.node, 0))


class _Writer:
    """Writes functions out; counts every node that it looks at, so that functions of functions end. Owned by one thread."""

    def __init__(self, model: ModelProto, most: int) -> None:
        self._functions = {(one.domain, one.name): one for one in model.functions}
        self._most = most
        self._seen = 0

    def write_out(self, nodes: Iterable[NodeProto], depth: int) -> Iterator[NodeProto]:
        if depth > _MAX_DEPTH:
            raise BadParamError(f"functions call one another more than {_MAX_DEPTH} deep")
        for node in nodes:
            self._seen += 1
            if self._seen > self._most:
                raise BadParamError(f"has more than {self._most} nodes")
            function = self._functions.get((node.domain, node.op_type))
            if function is None:
                yield node
            else:
                prefix = f"{node.name or node.op_type}.{self._seen}/"
                yield from self.write_out(_body(node, function, prefix), depth + 1)


def _body(node: NodeProto, function: FunctionProto, prefix: str) -> Iterator[NodeProto]:
    """The nodes of a function with the names and attributes of the node that calls it."""
    if len(node.input) > len(function.input) or len(node.output) > len(function.output):
        raise BadParamError(f"node {node.name!r} calls function {function.name!r} with more than it takes or gives")
    names = dict(zip(function.input, node.input, strict=False))
    names |= dict.fromkeys(function.input[len(node.input) :], "")
    names |= {inner: outer for inner, outer in zip(function.output, node.output, strict=False) if outer}
    given = {one.name: one for one in function.attribute_proto} | {one.name: one for one in node.attribute}
    scope = _Scope(prefix, names, given)
    for inner in function.node:
        copy = NodeProto()
        copy.CopyFrom(inner)
        copy.name = f"{prefix}{inner.name}" if inner.name else ""
        del copy.input[:], copy.output[:], copy.attribute[:]
        copy.input.extend(map(scope.name, inner.input))
        copy.output.extend(map(scope.name, inner.output))
        copy.attribute.extend(_bound(inner.attribute, scope.attributes))
        yield copy


def _bound(attributes: Sequence[AttributeProto], given: Mapping[str, AttributeProto]) -> Iterator[AttributeProto]:
    """Attributes, with those that refer to the function's own replaced; such as were not given are left out."""
    for attribute in attributes:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in given:
            copy = AttributeProto()
            copy.CopyFrom(given[attribute.ref_attr_name])
            copy.name = attribute.name
            yield copy
