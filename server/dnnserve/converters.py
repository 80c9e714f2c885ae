"""Protobuf messages to rows and back; every size is checked against the model before anything is allocated for it.

What a request may carry for the net's input, n rows:

* `FP32` [n, C, H, W]: the rows themselves, in `raw_input_contents` or `fp32_contents`;
* `UINT8` [n, H, W, C]: pixels at the net's size, in `raw_input_contents` or `uint_contents`; normalised here;
* `BYTES` [n] or [n, 1]: image files of any size, in `raw_input_contents` or `bytes_contents`; decoded and preprocessed here.

A model whose preprocessing nobody has said takes `FP32` alone.

Of the parameters, `timeout` of the request and `classification` of the output are read; sequences and shared memory are refused;
others (`priority` among them: there are no priority levels) are left alone, as Triton does.
"""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier

from dnncore.errors import PreprocessingError
from dnncore.preprocessing import Preprocessing
from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError

__all__ = ["InferenceInput", "classify_response", "infer_response", "read_classify", "read_infer", "top_k"]

_DEFAULT_TOP_K = 5
_LENGTH = struct.Struct("<I")
# Decoding takes up to 12 bytes a pixel (measured: RGBA, its copy, RGB), 600 MB for the largest image that is let in. A handler
# thread each would be more memory than the machine has, and more threads than CPUs decode nothing sooner.
_decoders = threading.BoundedSemaphore(min(os.cpu_count() or 1, 8))


@dataclass(frozen=True, slots=True)
class InferenceInput:
    """A request whose sizes were checked. Immutable.

    Args:
        count: Rows.
        rows: Makes the float32 [count, C, H, W] array: a view of the message, or the result of decoding images.
        top_k: Classes wanted; 0: all probabilities, as a tensor.
        timeout_us: The request's own time limit; None: it has none.
    """

    count: int
    rows: Callable[[], np.ndarray]
    top_k: int
    timeout_us: int | None = None


def read_infer(request: inference.ModelInferRequest, spec: ModelSpec) -> InferenceInput:
    """Check a ModelInferRequest against the model.

    Raises:
        InvalidRequestError: it does not fit; the message names the value and what would fit.
    """
    tensor = _only_input(request, spec)
    shape = tuple(tensor.shape)
    raw = _raw_contents(request)
    if raw is not None and tensor.HasField("contents"):
        raise InvalidRequestError(
            f"input {spec.input_name!r} has both contents and raw_input_contents; send one of the two"
        )
    contents = tensor.contents
    count = _check_shape(tensor.datatype, shape, spec)
    rows: Callable[[], np.ndarray]
    match tensor.datatype:
        case "FP32" | "UINT8" if raw is not None:
            rows = _array_rows(tensor.datatype, raw, shape, spec)
        case "FP32":
            rows = _array_rows("FP32", _typed(contents.fp32_contents, "<f4", "fp32_contents", shape), shape, spec)
        case "UINT8":
            rows = _array_rows("UINT8", _pixels(contents.uint_contents, shape), shape, spec)
        case _:
            images = _bytes_elements(raw, count) if raw is not None else list(contents.bytes_contents)
            rows = _image_rows(images, count, spec)
    return InferenceInput(count, rows, _requested_top_k(request, spec), _timeout_us(request.parameters))


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
        return InferenceInput(count, _image_rows(request.images, count, spec), classes)
    tensor = request.tensor
    shape = tuple(tensor.shape)
    if tensor.datatype not in ("FP32", "UINT8"):
        raise InvalidRequestError(f"tensor datatype {shorten(tensor.datatype)} is not supported; use FP32 or UINT8")
    count = _check_shape(tensor.datatype, shape, spec)
    return InferenceInput(count, _array_rows(tensor.datatype, tensor.contents, shape, spec), classes)


def infer_response(request_id: str, spec: ModelSpec, outputs: np.ndarray, classes: int) -> inference.ModelInferResponse:
    """Answer with the probabilities [n, K] as FP32, or with `classes` strings "value:index:label" a row as BYTES."""
    response = inference.ModelInferResponse(
        model_name=spec.key.name, model_version=str(spec.key.version), id=request_id
    )
    tensor = response.outputs.add(name=spec.output_name)
    if not classes:
        tensor.datatype = "FP32"
        tensor.shape.extend(outputs.shape)
        response.raw_output_contents.append(np.ascontiguousarray(outputs, "<f4").tobytes())
        return response
    best = top_k(outputs, classes)
    tensor.datatype = "BYTES"
    tensor.shape.extend(best.shape)
    elements = []
    for row, indices in zip(outputs, best, strict=True):
        for index in indices:
            label = spec.label(index)
            text = f"{row[index]:f}:{index}:{label}" if label else f"{row[index]:f}:{index}"
            element = text.encode()
            elements += [_LENGTH.pack(len(element)), element]
    response.raw_output_contents.append(b"".join(elements))
    return response


def classify_response(
    request_id: str, spec: ModelSpec, outputs: np.ndarray, classes: int
) -> classifier.ClassifyResponse:
    """Answer with the `classes` most probable labels of each row."""
    response = classifier.ClassifyResponse(
        model_name=spec.key.name, model_version=str(spec.key.version), request_id=request_id
    )
    for row, indices in zip(outputs, top_k(outputs, classes), strict=True):
        labels = [classifier.Label(index=i, name=spec.label(i), probability=row[i]) for i in indices]
        response.classifications.append(classifier.Classification(labels=labels))
    return response


def top_k(outputs: np.ndarray, classes: int) -> np.ndarray:
    """Indices [n, classes] of the largest values of each row, largest first; equal ones by index, NaN last."""
    return np.argsort(-outputs, axis=-1, kind="stable")[:, :classes]


def _only_input(request: inference.ModelInferRequest, spec: ModelSpec) -> Any:
    names = [tensor.name for tensor in request.inputs]
    if names != [spec.input_name]:
        there = ", ".join(map(shorten, names[:8])) or "none"
        raise InvalidRequestError(
            f"the request has {len(names)} inputs ({there}); model {spec.key} takes exactly one, {spec.input_name!r}"
        )
    if "shared_memory_region" in request.inputs[0].parameters:
        raise InvalidRequestError("shared memory inputs are not supported; send raw_input_contents")
    return request.inputs[0]


def _raw_contents(request: inference.ModelInferRequest) -> bytes | None:
    if len(request.raw_input_contents) > 1:
        raise InvalidRequestError(
            f"the request has {len(request.raw_input_contents)} raw_input_contents for 1 input; send one an input"
        )
    return request.raw_input_contents[0] if request.raw_input_contents else None


def _check_shape(datatype: str, shape: tuple[int, ...], spec: ModelSpec) -> int:
    """Rows of a tensor of this datatype and shape."""
    c, h, w = spec.input_shape
    layouts = {"FP32": ("N, C, H, W", (c, h, w)), "UINT8": ("N, H, W, C", (h, w, c)), "BYTES": ("N", ())}
    if datatype not in layouts:
        raise InvalidRequestError(
            f"datatype {shorten(datatype)} of input {spec.input_name!r} is not supported; use {', '.join(layouts)}"
        )
    names, row_shape = layouts[datatype]
    fits = shape[1:] == row_shape or (datatype == "BYTES" and shape[1:] == (1,))
    if not shape or not fits:
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


def _array_rows(datatype: str, data: Any, shape: tuple[int, ...], spec: ModelSpec) -> Callable[[], np.ndarray]:
    """Rows of a checked shape from its bytes (or an array over them)."""
    dtype = np.dtype("<f4" if datatype == "FP32" else "u1")
    expected = math.prod(shape) * dtype.itemsize
    if memoryview(data).nbytes != expected:
        raise InvalidRequestError(
            f"the tensor has {memoryview(data).nbytes} bytes; {datatype}{list(shape)} has {expected}"
        )
    array = np.frombuffer(data, dtype).reshape(shape)
    if datatype == "FP32":
        return lambda: array
    preprocessing = _preprocessing(spec)
    return lambda: preprocessing.normalize(array)


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


def _bytes_elements(raw: bytes, count: int) -> list[bytes]:
    """Split a raw BYTES tensor: for each element four bytes of little-endian length, then the element."""
    view, elements, position = memoryview(raw), [], 0
    for index in range(count):
        if len(view) - position < _LENGTH.size:
            raise InvalidRequestError(f"the BYTES tensor ends after {index} elements; its shape has {count}")
        (length,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        if length > len(view) - position:
            raise InvalidRequestError(
                f"element {index} of the BYTES tensor claims {length} bytes; {len(view) - position} are left"
            )
        elements.append(bytes(view[position : position + length]))
        position += length
    if position != len(view):
        raise InvalidRequestError(f"the BYTES tensor has {len(view) - position} bytes after its {count} elements")
    return elements


def _image_rows(images: Sequence[bytes], count: int, spec: ModelSpec) -> Callable[[], np.ndarray]:
    if len(images) != count:
        raise InvalidRequestError(f"bytes_contents has {len(images)} elements; the shape has {count}")
    preprocessing = _preprocessing(spec)

    def decode() -> np.ndarray:
        rows = np.empty((count, *spec.input_shape), np.float32)
        for index, image in enumerate(images):
            try:
                with _decoders:
                    rows[index] = preprocessing.from_bytes(image)
            except PreprocessingError as error:
                raise InvalidRequestError(f"image {index}: {error}") from error
        return rows

    return decode


def _requested_top_k(request: inference.ModelInferRequest, spec: ModelSpec) -> int:
    if not request.outputs:
        return 0
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


def _integer(parameter: Any, name: str) -> int:
    choice = parameter.WhichOneof("parameter_choice")
    if choice not in ("int64_param", "uint64_param"):
        raise InvalidRequestError(f"parameter {name!r} comes as {choice or 'nothing'}; send int64_param")
    return int(getattr(parameter, choice))


def _bounded(shape: tuple[int, ...]) -> str:
    return str(list(shape)) if len(shape) <= 8 else f"of {len(shape)} dimensions"
