"""What each call of a client sends, and how its answer is read: the same for both clients. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
from dnnapi.inference import grpc_service_pb2 as oip
from dnnapi.v1 import classifier_pb2 as pb

from dnnclient import messages
from dnnclient.channels import Metadata, Method, ranked
from dnnclient.results import Classification, ModelInfo

__all__ = ["CLASSIFY", "METHODS", "Call", "classify", "infer", "live", "model", "ready"]

_Result = TypeVar("_Result")


def _method(file: Any, service: str, name: str) -> Method:
    described = file.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    request, response = (getattr(file, kind.name) for kind in (described.input_type, described.output_type))
    return Method(f"/{described.containing_service.full_name}/{name}", request, response)


CLASSIFY = _method(pb, "ClassifierService", "Classify")
_GET_MODEL = _method(pb, "ClassifierService", "GetModel")
_MODEL_INFER, _MODEL_READY, _SERVER_LIVE, _SERVER_READY = (
    _method(oip, "GRPCInferenceService", name) for name in ("ModelInfer", "ModelReady", "ServerLive", "ServerReady")
)
METHODS = (CLASSIFY, _GET_MODEL, _MODEL_INFER, _MODEL_READY, _SERVER_LIVE, _SERVER_READY)
"""All that a client calls."""


@dataclass(frozen=True, slots=True)
class Call(Generic[_Result]):
    """A request to send and the way to read its answer. Immutable.

    Args:
        method: Where it goes.
        request: The message.
        read: Makes the result of the response; raises ServerError for one that makes no sense.
        retried: Whether it may be sent again; what asks for a server's state takes the first answer.
        metadata: What goes along with it.
    """

    method: Method
    request: Any
    read: Callable[[Any], _Result]
    retried: bool = True
    metadata: Metadata = ()


def classify(
    images: messages.Image | Sequence[messages.Image], *, model: str, version: str, top_k: int, priority: int
) -> Call[list[Classification]]:
    """Classify images; files are read here."""
    request = messages.classify_request(images, model=model, version=version, top_k=top_k)

    def read(response: pb.ClassifyResponse) -> list[Classification]:
        messages.check_answer(request, response)
        return messages.classifications(response)

    return Call(CLASSIFY, request, read, metadata=ranked(priority))


def infer(
    inputs: Mapping[str, np.ndarray], *, outputs: Sequence[str], model: str, version: str, priority: int
) -> Call[dict[str, np.ndarray]]:
    """Run a model on tensors."""
    request = messages.infer_request(inputs, outputs=outputs, model=model, version=version)
    metadata = ranked(priority)
    if priority:
        request.parameters["priority"].uint64_param = priority  # where other servers look for it
    return Call(_MODEL_INFER, request, messages.infer_outputs, metadata=metadata)


def model(name: str, version: str) -> Call[ModelInfo]:
    """Ask for a model's description."""
    return Call(_GET_MODEL, pb.GetModelRequest(model_name=name, model_version=version), messages.model_info)


def live() -> Call[bool]:
    """Ask whether a server answers."""
    return Call(_SERVER_LIVE, oip.ServerLiveRequest(), attrgetter("live"), retried=False)


def ready(model: str | None, version: str) -> Call[bool]:
    """Ask whether a server takes requests, or whether a model does."""
    if model is None:
        return Call(_SERVER_READY, oip.ServerReadyRequest(), attrgetter("ready"), retried=False)
    request = oip.ModelReadyRequest(name=model, version=version)
    return Call(_MODEL_READY, request, attrgetter("ready"), retried=False)
