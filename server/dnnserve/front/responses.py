"""Outputs to serialized responses: tensors, classes as text, and labels."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier

from dnnserve.catalog import ModelSpec
from dnnserve.envelope import ModelKey
from dnnserve.front.parameters import Wanted
from dnnserve.front.tensors import DATATYPES

__all__ = ["classify_response", "infer_response", "top_k", "varint"]

_LENGTH = struct.Struct("<I")
_BYTES = 2  # wire type of what stands behind its length
_ID_TAG = bytes([inference.ModelInferResponse.ID_FIELD_NUMBER << 3 | _BYTES])
_RAW_TAG = bytes([inference.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | _BYTES])


_SHORT = tuple(bytes([number]) for number in range(0x80))


def infer_response(request_id: str, spec: ModelSpec, outputs: Sequence[np.ndarray], wanted: Sequence[Wanted]) -> bytes:
    """Answer with the outputs that are wanted; of one of which classes are, with so many strings "value:index:label" a row."""
    described, data = [], []
    for place, classes in wanted:
        tensor, output = spec.signature.outputs[place], outputs[place]
        if classes:
            best = top_k(output, classes)
            described.append((tensor.name, "BYTES", best.shape))
            data.append(_classes(spec, output, best))
        else:
            described.append((tensor.name, DATATYPES[tensor.dtype], output.shape))
            data.append(output.tobytes())
    before_id, behind_id = _frame(spec.key, tuple(described))
    parts = [before_id]
    if request_id:
        name = request_id.encode()
        parts += _ID_TAG, varint(len(name)), name
    parts.append(behind_id)
    for each in data:
        parts += _RAW_TAG, varint(len(each)), each
    return b"".join(parts)


def _classes(spec: ModelSpec, outputs: np.ndarray, best: np.ndarray) -> bytes:
    """The best classes of each row as elements of a BYTES tensor."""
    elements = []
    for row, indices in zip(outputs, best, strict=True):
        for index in indices:
            label = spec.label(index)
            text = f"{float(row[index]):f}:{index}:{label}" if label else f"{float(row[index]):f}:{index}"
            element = text.encode()
            elements += [_LENGTH.pack(len(element)), element]
    return b"".join(elements)


@lru_cache(maxsize=1024)
def _frame(model: ModelKey, tensors: tuple[tuple[str, str, tuple[int, ...]], ...]) -> tuple[bytes, bytes]:
    """What stands before the id of a response, and between that and its data: model, and name, datatype and shape of each tensor.

    Messages written one behind the other are one message with the fields of all, so what is the same in all responses of a shape is
    written once, by protobuf, and each response is joined from bytes.
    """
    before = inference.ModelInferResponse(model_name=model.name, model_version=str(model.version))
    behind = inference.ModelInferResponse()
    for name, datatype, shape in tensors:
        behind.outputs.add(name=name, datatype=datatype, shape=shape)
    return before.SerializeToString(), behind.SerializeToString()


def varint(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    if number < 0x80:
        return _SHORT[number]
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def classify_response(
    request_id: str, spec: ModelSpec, outputs: Sequence[np.ndarray], wanted: Sequence[Wanted]
) -> bytes:
    """Answer with the most probable labels of each row."""
    ((place, classes),) = wanted
    probabilities = outputs[place]
    response = classifier.ClassifyResponse(
        model_name=spec.key.name, model_version=str(spec.key.version), request_id=request_id
    )
    for row, indices in zip(probabilities, top_k(probabilities, classes), strict=True):
        labels = [classifier.Label(index=i, name=spec.label(i), probability=row[i]) for i in indices]
        response.classifications.append(classifier.Classification(labels=labels))
    return response.SerializeToString()


def top_k(outputs: np.ndarray, classes: int) -> np.ndarray:
    """Indices [n, classes] of the largest values of each row, largest first; equal ones by index, NaN last."""
    return np.argsort(-outputs, axis=-1, kind="stable")[:, :classes]
