"""Outputs to serialized responses: tensors, classes as text, and labels."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier

from dnnserve.catalog import ModelSpec
from dnnserve.envelope import ModelKey
from dnnserve.front.parameters import Wanted, ranking_of
from dnnserve.front.sources import Checkpoint
from dnnserve.front.tensors import DATATYPES
from dnnserve.shared_memory.requests import Area

__all__ = ["classify_response", "infer_response", "top_k", "varint"]

_LENGTH = struct.Struct("<I")
_BYTES = 2  # wire type of what stands behind its length
_ID_TAG = bytes([inference.ModelInferResponse.ID_FIELD_NUMBER << 3 | _BYTES])
_RAW_TAG = bytes([inference.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | _BYTES])

_SORTED_WHOLE = 256  # values of a row; for fewer the sort takes less time than choosing what is sorted

_Described = tuple[str, str, tuple[int, ...], Area | None]
"""Of a tensor: name, datatype, shape, and where it was written."""

_SHORT = tuple(bytes([number]) for number in range(0x80))


def infer_response(
    request_id: str,
    spec: ModelSpec,
    outputs: Mapping[int, np.ndarray],
    wanted: Sequence[Wanted],
    checkpoint: Checkpoint,
) -> bytes:
    """Answer with the outputs that are wanted; of one of which classes are, with so many strings "value:index:label" a row.

    An output that has a destination is written there, with a look at the checkpoint before every piece, and the response has an
    empty place for it: contents are found by counting.
    """
    described: list[_Described] = []
    data = []
    for place, classes, destination in wanted:
        tensor = spec.outputs[place]
        if classes:
            best, values = _best(spec, outputs, place, classes)
            described.append((tensor.name, "BYTES", best.shape, None))
            data.append(_classes(spec, best, values))
        else:
            output = outputs[place]
            area = None if destination is None else destination.write(output, checkpoint)
            described.append((tensor.name, DATATYPES[tensor.dtype], output.shape, area))
            data.append(output.tobytes() if area is None else b"")
    before_id, behind_id = _frame(spec.key, tuple(described))
    parts = [before_id]
    if request_id:
        name = request_id.encode()
        parts += _ID_TAG, varint(len(name)), name
    parts.append(behind_id)
    for each in data:
        parts += _RAW_TAG, varint(len(each)), each
    return b"".join(parts)


def _best(
    spec: ModelSpec, outputs: Mapping[int, np.ndarray], place: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices and values, [n, classes], of an output's best classes: from the device, where it ranks so many."""
    if classes <= spec.ranked:
        values, indices = (outputs[number][:, :classes] for number in ranking_of(spec))
        return indices, values
    best = top_k(outputs[place], classes)
    return best, np.take_along_axis(outputs[place], best, -1)


def _classes(spec: ModelSpec, best: np.ndarray, values: np.ndarray) -> bytes:
    """The best classes of each row as elements of a BYTES tensor."""
    elements = []
    for index, value in zip(best.ravel().tolist(), values.ravel().tolist(), strict=True):
        label = spec.label(index)
        text = f"{value:f}:{index}:{label}" if label else f"{value:f}:{index}"
        element = text.encode()
        elements += [_LENGTH.pack(len(element)), element]
    return b"".join(elements)


@lru_cache(maxsize=1024)
def _frame(model: ModelKey, tensors: tuple[_Described, ...]) -> tuple[bytes, bytes]:
    """What stands before the id of a response, and between that and its data: model, and what is said of each tensor.

    Messages written one behind the other are one message with the fields of all, so what is the same in all responses of a shape is
    written once, by protobuf, and each response is joined from bytes.
    """
    before = inference.ModelInferResponse(model_name=model.name, model_version=str(model.version))
    behind = inference.ModelInferResponse()
    for name, datatype, shape, area in tensors:
        tensor = behind.outputs.add(name=name, datatype=datatype, shape=shape)
        if area is not None:
            tensor.parameters["shared_memory_region"].string_param = area.region
            tensor.parameters["shared_memory_offset"].int64_param = area.offset
            tensor.parameters["shared_memory_byte_size"].int64_param = area.nbytes
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
    request_id: str,
    spec: ModelSpec,
    outputs: Mapping[int, np.ndarray],
    wanted: Sequence[Wanted],
    checkpoint: Checkpoint,  # noqa: ARG001 - Encoder's argument: nothing is written elsewhere
) -> bytes:
    """Answer with the most probable labels of each row."""
    ((place, classes, _),) = wanted
    best, values = _best(spec, outputs, place, classes)
    response = classifier.ClassifyResponse(
        model_name=spec.key.name, model_version=str(spec.key.version), request_id=request_id
    )
    for indices, row in zip(best.tolist(), values.tolist(), strict=True):
        labels = [
            classifier.Label(index=index, name=spec.label(index), probability=value)
            for index, value in zip(indices, row, strict=True)
        ]
        response.classifications.append(classifier.Classification(labels=labels))
    return response.SerializeToString()


def top_k(outputs: np.ndarray, classes: int) -> np.ndarray:
    """Indices [n, classes] of the largest values of each row, in the order of `dnncore.ops.top_k`, as devices rank them: largest
    first, equal ones by index, NaN before all. A row has at least so many.
    """
    if outputs.itemsize == 2:  # bfloat16 has no order where there is NaN
        outputs = outputs.astype(np.float32)
    if outputs.shape[-1] <= _SORTED_WHOLE:
        return _ranked(outputs)[:, :classes]
    candidates = _largest(outputs, classes)
    return np.take_along_axis(candidates, _ranked(np.take_along_axis(outputs, candidates, -1)), -1)


def _ranked(values: np.ndarray) -> np.ndarray:
    """Indices of each row's values, largest first, equal ones by index."""
    # Ascending and stable, NaN behind all, of rows from behind; read from behind again.
    backwards = np.argsort(values[:, ::-1], axis=-1, kind="stable")[:, ::-1]
    indices: np.ndarray = values.shape[-1] - 1 - backwards
    return indices


def _largest(outputs: np.ndarray, classes: int) -> np.ndarray:
    """Indices [n, classes], ascending, of the largest values of each row, without sorting it; of equal ones the first."""
    place = outputs.shape[-1] - classes
    last = np.partition(outputs, place, axis=-1)[:, place, None]  # the smallest that is among them; NaN is the largest
    above = ~(outputs <= last) & ~np.isnan(last)
    level = (outputs == last) | (np.isnan(outputs) & np.isnan(last))
    room = classes - above.sum(-1, keepdims=True)
    chosen = above | (level & (level.cumsum(-1) <= room))
    return np.nonzero(chosen)[1].reshape(-1, classes)
