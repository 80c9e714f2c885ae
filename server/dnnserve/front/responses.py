"""Outputs to serialized responses: tensors, classes as text, and labels."""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier

from dnnserve.catalog import ModelSpec
from dnnserve.envelope import ModelKey

__all__ = ["classify_response", "infer_response", "top_k", "varint"]

_LENGTH = struct.Struct("<I")
_BYTES = 2  # wire type of what stands behind its length
_ID_TAG = bytes([inference.ModelInferResponse.ID_FIELD_NUMBER << 3 | _BYTES])
_RAW_TAG = bytes([inference.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | _BYTES])


_SHORT = tuple(bytes([number]) for number in range(0x80))


def infer_response(request_id: str, spec: ModelSpec, outputs: np.ndarray, classes: int) -> bytes:
    """Answer with the probabilities, float32 [n, K], as FP32; or with `classes` strings "value:index:label" a row as BYTES."""
    if classes:
        best = top_k(outputs, classes)
        datatype, shape, data = "BYTES", best.shape, _classes(spec, outputs, best)
    else:
        datatype, shape, data = "FP32", outputs.shape, outputs.tobytes()
    before_id, behind_id = _frame(spec.key, spec.output_name, datatype, shape)
    name = request_id.encode()
    tagged = (_ID_TAG, varint(len(name)), name) if name else ()
    return b"".join((before_id, *tagged, behind_id, varint(len(data)), data))


def _classes(spec: ModelSpec, outputs: np.ndarray, best: np.ndarray) -> bytes:
    """The best classes of each row as elements of a BYTES tensor."""
    elements = []
    for row, indices in zip(outputs, best, strict=True):
        for index in indices:
            label = spec.label(index)
            text = f"{row[index]:f}:{index}:{label}" if label else f"{row[index]:f}:{index}"
            element = text.encode()
            elements += [_LENGTH.pack(len(element)), element]
    return b"".join(elements)


@lru_cache(maxsize=1024)
def _frame(model: ModelKey, output: str, datatype: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What stands before the id of a response and between that and the length of its data.

    Messages written one behind the other are one message with the fields of all, so what is the same in all responses of a shape is
    written once, by protobuf, and each response is joined from bytes.
    """
    before = inference.ModelInferResponse(model_name=model.name, model_version=str(model.version))
    behind = inference.ModelInferResponse()
    behind.outputs.add(name=output, datatype=datatype, shape=shape)
    return before.SerializeToString(), behind.SerializeToString() + _RAW_TAG


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


def classify_response(request_id: str, spec: ModelSpec, outputs: np.ndarray, classes: int) -> bytes:
    """Answer with the `classes` most probable labels of each row."""
    response = classifier.ClassifyResponse(
        model_name=spec.key.name, model_version=str(spec.key.version), request_id=request_id
    )
    for row, indices in zip(outputs, top_k(outputs, classes), strict=True):
        labels = [classifier.Label(index=i, name=spec.label(i), probability=row[i]) for i in indices]
        response.classifications.append(classifier.Classification(labels=labels))
    return response.SerializeToString()


def top_k(outputs: np.ndarray, classes: int) -> np.ndarray:
    """Indices [n, classes] of the largest values of each row, largest first; equal ones by index, NaN last."""
    return np.argsort(-outputs, axis=-1, kind="stable")[:, :classes]
