"""Bodies of HTTP to messages of `inference.GRPCInferenceService`, and its messages to bodies.

What a request means, and whether it fits the model, is for the gRPC service to say: here it is only written in another way. A
tensor is the elements of `data`, nested by the shape or flat, or it comes and goes as bytes behind the JSON (the binary tensor
extension), whose length the header Inference-Header-Content-Length gives then.

Source: inference_rest.md of the Open Inference Protocol; extension_binary_data.md of Triton.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from google.protobuf.message import Message

from dnnserve.catalog import shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.parameters import AS_JSON
from dnnserve.front.responses import varint
from dnnserve.front.rest.routes import Route
from dnnserve.front.tensors import CONTENTS, DTYPES

__all__ = [
    "MAX_JSON_BYTES",
    "Binary",
    "Body",
    "infer_body",
    "infer_message",
    "plain_body",
    "region_message",
    "repository_message",
    "route_message",
]

MAX_JSON_BYTES = 4 << 20
"""Reading JSON holds the interpreter's lock for 35 to 50 ms per MiB, and takes up to 30 times its memory. An image of 224 x 224 in
FP32 has 3 MiB."""

_MAX_SETTINGS_BYTES = 64 << 10
"""Of the JSON of every other request, which has a few words and numbers."""

_MAX_DIMENSIONS = 32
"""Of a tensor: arrays of NumPy 1 have no more, and the product of so many extents stays a number of 2048 bits."""

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Body:
    """A body and how it is to be read. Immutable.

    Args:
        data: JSON, and behind it what is binary.
        json_bytes: Length of the JSON; None: it is all there is.
    """

    data: bytes
    json_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    """Which tensors of an answer are wanted as bytes. Immutable.

    Args:
        default: Whether those are of which the request does not speak.
        outputs: Whether one is, by its name.
    """

    default: bool = False
    outputs: Mapping[str, bool] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return self.outputs.get(name, self.default)


def route_message(route: Route) -> bytes:
    """The serialized request of a method that is told nothing but a model, or a region of shared memory."""
    message: Any = getattr(inference, f"{route.method}Request")()
    for name, value in (("name", route.model), ("version", route.version)):
        if name in message.DESCRIPTOR.fields_by_name:
            setattr(message, name, value)
    serialized: bytes = message.SerializeToString()
    return serialized


def region_message(route: Route, body: bytes) -> bytes:
    """The serialized request of a method that changes regions of shared memory.

    Raises:
        InvalidRequestError: the body is not as the protocol has it.
    """
    if route.method != "SystemSharedMemoryRegister":
        return route_message(route)
    document = _settings(body)
    message = inference.SystemSharedMemoryRegisterRequest(name=route.model)
    try:
        message.key = _member(document, "key", str)
        message.offset = _member(document, "offset", int, 0)
        message.byte_size = _member(document, "byte_size", int)
    except ValueError as error:  # protobuf's, of a number or a text that is none of these
        raise InvalidRequestError(f"the region cannot be read: {shorten(str(error))}") from error
    return message.SerializeToString()


def repository_message(route: Route, body: bytes) -> bytes:
    """The serialized request of a method of the repository; an empty body stands for an empty object.

    Raises:
        InvalidRequestError: the body is not as the protocol has it.
    """
    document = _settings(body) if body else {}
    if route.method == "RepositoryIndex":
        return inference.RepositoryIndexRequest(ready=_member(document, "ready", bool, False)).SerializeToString()
    kind: Any = getattr(inference, f"{route.method}Request")
    message = kind(model_name=route.model)
    try:
        _set_parameters(message, document)
    except (AttributeError, ValueError) as error:  # protobuf's: these have no numbers with a point
        raise InvalidRequestError(f"the parameters cannot be read: {shorten(str(error))}") from error
    serialized: bytes = message.SerializeToString()
    return serialized


def infer_message(route: Route, body: bytes, json_bytes: int | None) -> tuple[bytes, Binary]:
    """Make a serialized ModelInferRequest.

    Args:
        route: Which model.
        body: JSON, and behind it the tensors that say `binary_data_size`, in the order of the inputs.
        json_bytes: Length of the JSON; None: the whole body.

    Returns:
        The message, and which of the answer's tensors are wanted as bytes.

    Raises:
        InvalidRequestError: the body is not as the protocol has it.
    """
    try:
        return _infer_message(route, body, len(body) if json_bytes is None else json_bytes)
    except (TypeError, ValueError, OverflowError) as error:  # protobuf's, of a value that does not fit its field
        raise InvalidRequestError(f"the request cannot be read: {shorten(str(error))}") from error


def _infer_message(route: Route, body: bytes, length: int) -> tuple[bytes, Binary]:
    if length > len(body):
        raise InvalidRequestError(f"Inference-Header-Content-Length is {length}; the body has {len(body)} bytes")
    if length > MAX_JSON_BYTES:
        raise InvalidRequestError(
            f"the request has {length} bytes of JSON, at most {MAX_JSON_BYTES} are read: send tensors as binary data behind it"
        )
    document = _document(body[:length])
    message = inference.ModelInferRequest(model_name=route.model, model_version=route.version)
    message.id = _member(document, "id", str, "")
    _set_parameters(message, document)
    contents = []
    behind = memoryview(body)[length:]
    for given in _objects(document, "inputs"):
        tensor = message.inputs.add(name=_member(given, "name", str), datatype=_member(given, "datatype", str))
        shape = _member(given, "shape", list)
        if len(shape) > _MAX_DIMENSIONS:
            raise InvalidRequestError(
                f"shape of input {shorten(tensor.name)} has {len(shape)} dimensions; at most {_MAX_DIMENSIONS} are read"
            )
        for extent in shape:
            if type(extent) is not int:
                raise InvalidRequestError(
                    f"shape of input {shorten(tensor.name)} has {_kind(extent)}; send whole numbers"
                )
        tensor.shape.extend(shape)
        parameters = _set_parameters(tensor, given)
        if "data" in given:
            _set_contents(tensor, _member(given, "data", list))
        if "binary_data_size" in parameters:
            size = _member(parameters, "binary_data_size", int)
            if not 0 <= size <= len(behind):
                raise InvalidRequestError(
                    f"binary_data_size of input {shorten(tensor.name)} is {size}; {len(behind)} bytes are there"
                )
            contents.append(behind[:size])
            behind = behind[size:]
    if behind:
        raise InvalidRequestError(f"{len(behind)} bytes are left behind the inputs' binary data")
    default = _member(_member(document, "parameters", dict, {}), "binary_data_output", bool, False)
    outputs = {}
    for given in _objects(document, "outputs", ()):
        name = _member(given, "name", str)
        output = message.outputs.add(name=name)
        outputs[name] = _member(_set_parameters(output, given), "binary_data", bool, default)
        if not outputs[name]:
            output.parameters[AS_JSON].bool_param = True
    if not (outputs or default):
        message.parameters[AS_JSON].bool_param = True
    return _joined(message, contents), Binary(default, outputs)


def infer_body(serialized: bytes, binary: Binary) -> Body:
    """The body of a ModelInferResponse."""
    message = inference.ModelInferResponse.FromString(serialized)
    outputs: list[dict[str, Any]] = []
    behind = []
    for tensor, raw in zip(message.outputs, message.raw_output_contents, strict=True):
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if "shared_memory_region" in tensor.parameters:
            pass  # the client knows where; to Triton's in C++, parameters speak of bytes behind the JSON
        elif tensor.name in binary:
            output["parameters"] = {"binary_data_size": len(raw)}
            behind.append(raw)
        else:
            output["data"] = _texts(raw) if tensor.datatype == "BYTES" else _numbers(tensor.datatype, raw)
        outputs.append(output)
    document = {"model_name": message.model_name, "model_version": message.model_version, "outputs": outputs}
    if message.id:
        document["id"] = message.id
    text = _written(document)
    return Body(b"".join((text, *behind)), len(text)) if behind else Body(text)


def plain_body(serialized: bytes, method: str) -> Body:
    """The body of any other method's response: a member for each field, also where it has its default."""
    kind: Any = getattr(inference, f"{method}Response")
    message = kind.FromString(serialized)
    if method == "RepositoryIndex":
        return Body(_written([_plain(entry) for entry in message.models]))
    if method == "SystemSharedMemoryStatus":
        return Body(_written([_plain(message.regions[name]) for name in sorted(message.regions)]))
    if method == "CudaSharedMemoryStatus":
        return Body(_written([]))
    return Body(_written(_plain(message.config if method == "ModelConfig" else message)))


def _settings(body: bytes) -> dict[str, Any]:
    """The body of a request that has no tensors."""
    if len(body) > _MAX_SETTINGS_BYTES:
        raise InvalidRequestError(f"the request has {len(body)} bytes of JSON; at most {_MAX_SETTINGS_BYTES} are read")
    return _document(body)


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the request's {len(text)} bytes are no JSON: {error}") from error
    if type(document) is not dict:
        raise InvalidRequestError(f"the request is {_kind(document)} in JSON; send an object")
    return document


_REQUIRED: Any = object()


def _member(parent: dict[str, Any], name: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = parent.get(name, default)
    if value is _REQUIRED:
        raise InvalidRequestError(f"{name!r} is missing; send {_NAMES[kind]}")
    if type(value) is not kind and value is not default:
        raise InvalidRequestError(f"{name!r} is {_kind(value)}; send {_NAMES[kind]}")
    return value


_NAMES = {
    dict: "an object", list: "an array", str: "a string", int: "a whole number", bool: "true or false", float: "a number",
}  # fmt: skip


def _kind(value: Any) -> str:
    return "null" if value is None else _NAMES[type(value)]


def _objects(parent: dict[str, Any], name: str, default: Any = _REQUIRED) -> Sequence[dict[str, Any]]:
    values: Sequence[dict[str, Any]] = _member(parent, name, list, default)
    for index, value in enumerate(values):
        if type(value) is not dict:
            raise InvalidRequestError(f"{name}[{index}] is {_kind(value)}; send an object")
    return values


def _set_parameters(message: Any, parent: dict[str, Any]) -> dict[str, Any]:
    """Copy an object's parameters, which are returned."""
    parameters: dict[str, Any] = _member(parent, "parameters", dict, {})
    fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in parameters.items():
        field = fields.get(type(value))
        if field is None:
            raise InvalidRequestError(
                f"parameter {shorten(name)} is {_kind(value)}; send a string, a number, true or false"
            )
        setattr(message.parameters[name], field, value)
    return parameters


def _set_contents(tensor: Any, values: list[Any]) -> None:
    """Copy `data`, nested by the shape or flat. A datatype that is unknown here is for the service to refuse."""
    for extent in tensor.shape[1:]:
        if not any(type(value) is list for value in values):
            break
        if not all(type(value) is list and len(value) == extent for value in values):
            raise InvalidRequestError(
                f"data of input {shorten(tensor.name)} is neither flat nor nested by its shape: not all are arrays of {extent}"
            )
        values = list(itertools.chain.from_iterable(values))
    expected = math.prod(tensor.shape)
    if len(values) != expected:
        raise InvalidRequestError(
            f"data of input {shorten(tensor.name)} has {len(values)} elements; its shape has {expected}"
        )
    tensor.contents.SetInParent()  # also where it has no field for the datatype
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        return
    if tensor.datatype == "BYTES":
        values = [value.encode() if type(value) is str else value for value in values]
    getattr(tensor.contents, field).extend(values)


def _joined(message: inference.ModelInferRequest, contents: Sequence[memoryview]) -> bytes:
    """The message with these `raw_input_contents`, which are copied once."""
    parts: list[bytes | memoryview] = [message.SerializeToString()]
    for content in contents:
        # Messages written one behind the other are one message; an empty field is its tag and its length, 0.
        tag = inference.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | 2
        parts += [bytes([tag]), varint(len(content)), content]
    return b"".join(parts)


def _numbers(datatype: str, raw: bytes) -> list[Any]:
    """Elements of any other tensor of ours."""
    numbers: list[Any] = np.frombuffer(raw, DTYPES[datatype]).tolist()
    return numbers


def _texts(raw: bytes) -> list[str]:
    """Elements of a BYTES tensor of ours."""
    texts, position = [], 0
    while position < len(raw):
        start = position + _LENGTH.size
        (length,) = _LENGTH.unpack_from(raw, position)
        position = start + length
        texts.append(raw[start:position].decode())
    return texts


def _plain(message: Message) -> dict[str, Any]:
    return {field.name: _plain_field(message, field) for field in message.DESCRIPTOR.fields if _said(message, field)}


def _said(message: Message, field: Any) -> bool:
    """Whether a field has a value, if only its default: a message that is one may be left out."""
    return not field.has_presence or message.HasField(field.name)


def _plain_field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {key: _plain(value[key]) for key in value}
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    return [_plain(each) for each in value] if field.is_repeated else _plain(value)


def _written(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
