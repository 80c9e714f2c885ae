"""Outputs to serialized responses: tensors, classes as text, and labels."""

from __future__ import annotations

import struct

import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier

from dnnserve.catalog import ModelSpec

__all__ = ["classify_response", "infer_response", "top_k"]

_LENGTH = struct.Struct("<I")


def infer_response(request_id: str, spec: ModelSpec, outputs: np.ndarray, classes: int) -> bytes:
    """Answer with the probabilities [n, K] as FP32, or with `classes` strings "value:index:label" a row as BYTES."""
    response = inference.ModelInferResponse(
        model_name=spec.key.name, model_version=str(spec.key.version), id=request_id
    )
    tensor = response.outputs.add(name=spec.output_name)
    if not classes:
        tensor.datatype = "FP32"
        tensor.shape.extend(outputs.shape)
        response.raw_output_contents.append(np.ascontiguousarray(outputs, "<f4").tobytes())
        return response.SerializeToString()
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
    return response.SerializeToString()


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
