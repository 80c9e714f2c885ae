"""Serialized requests to what their rows are made of; every size is checked against the model before anything is allocated for it.

What a request may carry for the net's input, n rows:

* `FP32` [n, C, H, W]: the rows themselves, in `raw_input_contents` or `fp32_contents`;
* `UINT8` [n, H, W, C]: pixels at the net's size, in `raw_input_contents` or `uint_contents`; normalised by the device;
* `BYTES` [n] or [n, 1]: image files of any size, in `raw_input_contents` or `bytes_contents`; decoded by the server.

A model whose preprocessing nobody has said takes `FP32` alone.

Of the parameters, `timeout` and `priority` of the request and `classification` of the output are read; sequences and shared memory
are refused; others are left alone, as Triton does.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from google.protobuf.message import DecodeError, Message

from dnncore.preprocessing import Preprocessing
from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.envelope_scanner import split_raw_contents
from dnnserve.front.sources import Images, Rows, RowSource

__all__ = ["InferRequest", "InferenceInput", "parse", "parse_infer", "read_classify", "read_infer"]

_DEFAULT_TOP_K = 5
_LENGTH = struct.Struct("<I")
_FLOATS, _BYTES = np.dtype("<f4"), np.dtype("u1")
_CONTENTS = {"FP32": "fp32_contents", "UINT8": "uint_contents", "BYTES": "bytes_contents"}
_Message = TypeVar("_Message", bound=Message)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A ModelInferRequest whose tensors are where they came in. Immutable.

    Args:
        message: The request without `raw_input_contents`.
        raw_contents: These, as views of the serialized request where it could be taken apart.
    """

    message: Any
    raw_contents: Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class InferenceInput:
    """A request whose sizes were checked. Immutable.

    Args:
        source: Makes the rows.
        top_k: Classes wanted; 0: all probabilities, as a tensor.
        timeout_us: The request's own time limit; None: it has none.
        priority: As `InferenceRequest` has it; 0: the model's.
    """

    source: RowSource
    top_k: int
    timeout_us: int | None = None
    priority: int = 0


def parse(kind: type[_Message], serialized: bytes) -> _Message:
    """Read a message.

    Raises:
        InvalidRequestError: the bytes are none of this kind.
    """
    try:
        return kind.FromString(serialized)
    except DecodeError as error:
        raise InvalidRequestError(
            f"the request's {len(serialized)} bytes are no {kind.DESCRIPTOR.full_name}"
        ) from error


def parse_infer(serialized: bytes) -> InferRequest:
    """Read a ModelInferRequest without copying the tensors in `raw_input_contents`.

    Raises:
        InvalidRequestError: the bytes are no such message.
    """
    parts = split_raw_contents(serialized)
    if parts is None:
        whole = parse(inference.ModelInferRequest, serialized)
        return InferRequest(whole, whole.raw_input_contents)
    return InferRequest(parse(inference.ModelInferRequest, parts[0]), parts[1])


def read_infer(request: InferRequest, spec: ModelSpec) -> InferenceInput:
    """Check a ModelInferRequest against the model.

    Raises:
        InvalidRequestError: it does not fit; the message names the value and what would fit.
    """
    message = request.message
    tensor = _only_input(message, spec)
    shape, datatype = tuple(tensor.shape), tensor.datatype
    raw = _raw_contents(request.raw_contents)
    if raw is not None and tensor.HasField("contents"):
        raise InvalidRequestError(
            f"input {spec.input_name!r} has both contents and raw_input_contents; send one of the two"
        )
    count = _check_shape(datatype, shape, spec)
    if datatype == "BYTES":
        files = tensor.contents.bytes_contents if raw is None else _bytes_elements(raw, count)
        source: RowSource = _images(files, count, spec)
    elif raw is not None:
        source = _tensor(datatype, raw, shape, spec)
    elif datatype == "FP32":
        source = _tensor(datatype, _typed(tensor.contents.fp32_contents, "<f4", "fp32_contents", shape), shape, spec)
    else:
        source = _tensor(datatype, _pixels(tensor.contents.uint_contents, shape), shape, spec)
    if raw is None:
        _check_only_contents(datatype, tensor)
    top_k = _requested_top_k(message, spec) if message.outputs else 0
    parameters = message.parameters
    if not parameters:
        return InferenceInput(source, top_k)
    return InferenceInput(source, top_k, _timeout_us(parameters), _priority(parameters))


def read_classify(request: classifier.ClassifyRequest, spec: ModelSpec) -> InferenceInput:
    """Check a ClassifyRequest against the model; top_k 0 means 5, more than there are classes means all of them.

    Raises:
        InvalidRequestError: it does not fit; the message names the value and what would fit.
    """
    if not spec.labels:
        raise InvalidRequestError(f"model {spec.key} has no labels to answer with; ask for its output by ModelInfer")
    if bool(request.images) == request.HasField("tensor"):
        both = "both images and a tensor" if request.images else "neither images nor a tensor"
        raise InvalidRequestError(f"the request has {both}; send exactly one of the two")
    classes = min(request.top_k or _DEFAULT_TOP_K, spec.num_classes)
    if request.images:
        count = len(request.images)
        _check_count(count, spec)
        return InferenceInput(_images(request.images, count, spec), classes)
    tensor = request.tensor
    shape = tuple(tensor.shape)
    if tensor.datatype not in ("FP32", "UINT8"):
        raise InvalidRequestError(f"tensor datatype {shorten(tensor.datatype)} is not supported; use FP32 or UINT8")
    _check_shape(tensor.datatype, shape, spec)
    return InferenceInput(_tensor(tensor.datatype, tensor.contents, shape, spec), classes)


def _only_input(request: inference.ModelInferRequest, spec: ModelSpec) -> Any:
    tensors = request.inputs
    if len(tensors) != 1 or (tensor := tensors[0]).name != spec.input_name:
        there = ", ".join(shorten(tensor.name) for tensor in tensors[:8]) or "none"
        raise InvalidRequestError(
            f"the request has {len(tensors)} inputs ({there}); model {spec.key} takes exactly one, {spec.input_name!r}"
        )
    if "shared_memory_region" in tensor.parameters:
        raise InvalidRequestError("shared memory inputs are not supported; send raw_input_contents")
    return tensor


def _raw_contents(contents: Sequence[bytes | memoryview]) -> bytes | memoryview | None:
    if len(contents) > 1:
        raise InvalidRequestError(f"the request has {len(contents)} raw_input_contents for 1 input; send one an input")
    return contents[0] if contents else None


def _check_only_contents(datatype: str, tensor: Any) -> None:
    others = [field.name for field, _ in tensor.contents.ListFields() if field.name != _CONTENTS[datatype]]
    if others:
        raise InvalidRequestError(
            f"input {shorten(tensor.name)} has {', '.join(others)} beside {_CONTENTS[datatype]}; {datatype} is sent in that alone"
        )


def _check_shape(datatype: str, shape: tuple[int, ...], spec: ModelSpec) -> int:
    """Rows of a tensor of this datatype and shape."""
    row_shape: tuple[int, ...]
    match datatype:
        case "FP32":
            names, row_shape = "N, C, H, W", spec.input_shape
        case "UINT8":
            names, row_shape = "N, H, W, C", (*spec.input_shape[1:], spec.input_shape[0])
        case "BYTES":
            names, row_shape = "N", (1,) if shape[1:] == (1,) else ()
        case _:
            known = ", ".join(_CONTENTS)
            raise InvalidRequestError(
                f"datatype {shorten(datatype)} of input {spec.input_name!r} is not supported; use {known}"
            )
    if not shape or shape[1:] != row_shape:
        wanted = ", ".join(["n", *map(str, row_shape)])
        raise InvalidRequestError(
            f"shape {_bounded(shape)} of {datatype} input {spec.input_name!r} does not fit; send [{wanted}] ({names})"
        )
    _check_count(shape[0], spec)
    return shape[0]


def _check_count(count: int, spec: ModelSpec) -> None:
    if not 1 <= count <= spec.max_batch_rows:
        raise InvalidRequestError(
            f"the request has {count} rows; model {spec.key} takes 1 to {spec.max_batch_rows} a request"
        )


def _tensor(datatype: str, data: Any, shape: tuple[int, ...], spec: ModelSpec) -> RowSource:
    """Rows of a checked shape from their bytes (or an array over them)."""
    dtype = _FLOATS if datatype == "FP32" else _BYTES
    expected, found = math.prod(shape) * dtype.itemsize, memoryview(data).nbytes
    if found != expected:
        raise InvalidRequestError(f"the tensor has {found} bytes; {datatype}{list(shape)} has {expected}")
    if datatype == "UINT8":
        _preprocessing(spec)
    return Rows(np.frombuffer(data, dtype).reshape(shape))


def _preprocessing(spec: ModelSpec) -> Preprocessing:
    if spec.preprocessing is None:
        shape = ", ".join(map(str, spec.input_shape))
        raise InvalidRequestError(
            f"model {spec.key} is served without preprocessing, so it takes no images and no pixels; send FP32 [n, {shape}]"
        )
    return spec.preprocessing


def _typed(values: Sequence[float], dtype: str, field: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array of a repeated field whose length was compared with the shape first."""
    if len(values) != math.prod(shape):
        raise InvalidRequestError(f"{field} has {len(values)} elements; shape {list(shape)} has {math.prod(shape)}")
    return np.fromiter(values, dtype, len(values))


def _pixels(values: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
    pixels = _typed(values, "<u4", "uint_contents", shape)
    if pixels.max() > np.iinfo(np.uint8).max:
        raise InvalidRequestError(f"uint_contents has the value {pixels.max()}; UINT8 ends at 255")
    return pixels.astype(np.uint8)


def _bytes_elements(raw: bytes | memoryview, count: int) -> list[memoryview]:
    """Split a raw BYTES tensor: for each element four bytes of little-endian length, then the element."""
    view, position = memoryview(raw), 0
    elements: list[memoryview] = []
    for index in range(count):
        if len(view) - position < _LENGTH.size:
            raise InvalidRequestError(f"the BYTES tensor ends after {index} elements; its shape has {count}")
        (length,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        if length > len(view) - position:
            raise InvalidRequestError(
                f"element {index} of the BYTES tensor claims {length} bytes; {len(view) - position} are left"
            )
        elements.append(view[position : position + length])
        position += length
    if position != len(view):
        raise InvalidRequestError(f"the BYTES tensor has {len(view) - position} bytes after its {count} elements")
    return elements


def _images(files: Sequence[bytes | memoryview], count: int, spec: ModelSpec) -> Images:
    if len(files) != count:
        raise InvalidRequestError(f"bytes_contents has {len(files)} elements; the shape has {count}")
    return Images(files, _preprocessing(spec))


def _requested_top_k(request: inference.ModelInferRequest, spec: ModelSpec) -> int:
    names = [output.name for output in request.outputs]
    if names != [spec.output_name]:
        there = ", ".join(map(shorten, names[:8]))
        raise InvalidRequestError(
            f"the request asks for {len(names)} outputs ({there}); model {spec.key} has one, {spec.output_name!r}"
        )
    parameters = request.outputs[0].parameters
    if "shared_memory_region" in parameters:
        raise InvalidRequestError("shared memory outputs are not supported; leave shared_memory_region out")
    if "classification" not in parameters:
        return 0
    classes = _integer(parameters["classification"], "classification")
    if classes < 1:
        raise InvalidRequestError(f"classification {classes} asks for no class; send 1 to {spec.num_classes}")
    return min(classes, spec.num_classes)


def _timeout_us(parameters: Any) -> int | None:
    """Triton's `timeout` in microseconds; 0 means none, as it does there."""
    if any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
        raise InvalidRequestError("sequences are not supported; leave the sequence_* parameters out")
    if "timeout" not in parameters:
        return None
    timeout_us = _integer(parameters["timeout"], "timeout")
    if timeout_us < 0:
        raise InvalidRequestError(
            f"timeout {timeout_us} us is negative; send the microseconds it may wait, or 0 for none"
        )
    return timeout_us or None


def _priority(parameters: Any) -> int:
    """Triton's `priority`: 1 is the most important, 0 the model's own, as it does there."""
    if "priority" not in parameters:
        return 0
    priority = _integer(parameters["priority"], "priority")
    if priority < 0:
        raise InvalidRequestError(
            f"priority {priority} is negative; send 1 for the most important, or 0 for the model's"
        )
    return priority


def _integer(parameter: Any, name: str) -> int:
    choice = parameter.WhichOneof("parameter_choice")
    if choice not in ("int64_param", "uint64_param"):
        raise InvalidRequestError(f"parameter {name!r} comes as {choice or 'nothing'}; send int64_param")
    return int(getattr(parameter, choice))


def _bounded(shape: tuple[int, ...]) -> str:
    return str(list(shape)) if len(shape) <= 8 else f"of {len(shape)} dimensions"
