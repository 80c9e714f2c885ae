"""Between values and messages of both services: requests are built and answers checked here, and nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from dnnapi.inference import grpc_service_pb2 as oip
from dnnapi.v1 import classifier_pb2 as pb

from dnnclient import tensors
from dnnclient.errors import InvalidArgumentError, ServerError
from dnnclient.results import Classification, ModelInfo, Prediction
from dnncore.preprocessing import Preprocessing

__all__ = [
    "Image",
    "check_answer",
    "classifications",
    "classify_request",
    "infer_outputs",
    "infer_request",
    "model_info",
    "num_images",
]

Image: TypeAlias = bytes | Path | np.ndarray
"""An image file's bytes or path; uint8 pixels [H, W, C] at the net's size; or the net's own float32 input [C, H, W]."""

_DATATYPES = {"uint8": "UINT8", "float32": "FP32"}
_ACCEPTED = "give bytes or a pathlib.Path of an image file, uint8 pixels [H, W, C] or float32 [C, H, W]"


def classify_request(
    images: Image | Sequence[Image], *, model: str, version: str = "", top_k: int = 5
) -> pb.ClassifyRequest:
    """Build the request for one image or several; files are read here.

    Args:
        images: One image, a sequence of them that are all encoded or all arrays of one shape and dtype, or one array with
            a leading batch dimension.
        model: Name of the model.
        version: Of the model; empty for the latest.
        top_k: Labels wanted for each image, 1 or more.

    Raises:
        InvalidArgumentError: no image, a mixture, or a type, dtype or shape that no model takes.
        OSError: a file cannot be read.
    """
    if top_k < 1:
        raise InvalidArgumentError(f"top_k is {top_k}; ask for 1 label or more")
    request = pb.ClassifyRequest(model_name=model, model_version=version, top_k=top_k)
    if isinstance(images, np.ndarray):
        request.tensor.CopyFrom(_tensor(images if images.ndim == 4 else _single(images)[np.newaxis]))
        return request
    entries = [images] if isinstance(images, bytes | Path) else list(images)
    if not entries:
        raise InvalidArgumentError("there is no image to classify; give one or more")
    if all(isinstance(entry, np.ndarray) for entry in entries):
        request.tensor.CopyFrom(_tensor(_stacked([_single(np.asarray(entry)) for entry in entries])))
    else:
        request.images.extend(_encoded(entry) for entry in entries)
    return request


def _encoded(entry: Image) -> bytes:
    if isinstance(entry, bytes):
        return entry
    if isinstance(entry, Path):
        return entry.read_bytes()
    if isinstance(entry, np.ndarray):
        raise InvalidArgumentError("arrays and encoded images are mixed in one request; send them in two")
    raise InvalidArgumentError(f"{type(entry).__name__} is not an image; {_ACCEPTED}")


def _single(array: np.ndarray) -> np.ndarray:
    if array.ndim != 3:
        raise InvalidArgumentError(f"shape {list(array.shape)} is not an image; {_ACCEPTED}")
    return array


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    kinds = sorted({f"{array.dtype}{list(array.shape)}" for array in arrays})
    if len(kinds) > 1:
        raise InvalidArgumentError(f"arrays of one request must agree in shape and dtype, these are {', '.join(kinds)}")
    return np.stack(arrays)


def _tensor(batch: np.ndarray) -> pb.Tensor:
    datatype = _DATATYPES.get(batch.dtype.name)
    if datatype is None:
        raise InvalidArgumentError(f"dtype {batch.dtype} is not sent; {_ACCEPTED}")
    little_endian = batch.astype(batch.dtype.newbyteorder("<"), copy=False)
    return pb.Tensor(datatype=datatype, shape=batch.shape, contents=little_endian.tobytes())


def num_images(request: pb.ClassifyRequest) -> int:
    """Return how many images a request holds."""
    return len(request.images) if request.images else int(request.tensor.shape[0])


def check_answer(request: pb.ClassifyRequest, response: pb.ClassifyResponse) -> None:
    """Check that an answer fits its request: one classification an image, each with at least one label.

    Raises:
        ServerError: it does not.
    """
    expected = num_images(request)
    if len(response.classifications) != expected:
        raise ServerError(f"{len(response.classifications)} classifications came back for {expected} images")
    if not all(classification.labels for classification in response.classifications):
        raise ServerError("a classification without any label came back")


def classifications(response: pb.ClassifyResponse) -> list[Classification]:
    """Return a checked answer as values, in the order of the request's images."""
    return [
        Classification(tuple(Prediction(label.index, label.name, label.probability) for label in classification.labels))
        for classification in response.classifications
    ]


def infer_request(
    inputs: Mapping[str, np.ndarray], *, outputs: Sequence[str], model: str, version: str
) -> oip.ModelInferRequest:
    """Build the request for tensors by name.

    Raises:
        InvalidArgumentError: a dtype that the protocol does not have.
    """
    return oip.ModelInferRequest(
        model_name=model,
        model_version=version,
        inputs=[
            oip.ModelInferRequest.InferInputTensor(name=name, datatype=tensors.datatype_of(array), shape=array.shape)
            for name, array in inputs.items()
        ],
        outputs=[oip.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs],
        raw_input_contents=[tensors.to_raw(array) for array in inputs.values()],
    )


def infer_outputs(response: oip.ModelInferResponse) -> dict[str, np.ndarray]:
    """Return the tensors of an answer by name, read-only.

    Raises:
        ServerError: their contents are not raw, or do not fit their shapes.
    """
    if len(response.raw_output_contents) != len(response.outputs):
        raise ServerError(
            f"{len(response.outputs)} outputs came back with {len(response.raw_output_contents)} raw contents; "
            "only answers with raw contents are understood"
        )
    return {
        output.name: tensors.from_raw(output.datatype, output.shape, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def model_info(response: pb.GetModelResponse) -> ModelInfo:
    """Return the description of a model as values.

    Raises:
        ServerError: its preprocessing is not one that this version of the client knows.
    """
    try:
        text = response.preprocessing_json
        preprocessing = Preprocessing.from_dict(json.loads(text)) if text else None
    except (ValueError, AttributeError, TypeError) as error:
        name = f"{response.model_name}/{response.model_version}"
        raise ServerError(f"the preprocessing of model {name} is not one that this client knows: {error}") from error
    return ModelInfo(
        name=response.model_name,
        version=response.model_version,
        versions=tuple(response.versions),
        input_shape=tuple(response.input_shape),
        labels=tuple(response.labels),
        preprocessing=preprocessing,
        max_batch_size=response.max_batch_size,
    )
