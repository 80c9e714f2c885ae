"""`inference.GRPCInferenceService`: the Open Inference Protocol, with what Triton adds to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dnnapi.inference import grpc_service_pb2 as inference

from dnncore.version import __version__
from dnnserve.catalog import shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.call import Methods
from dnnserve.front.model_info import config_message, metadata_message, statistics_message
from dnnserve.front.requests import parse, parse_infer
from dnnserve.front.responses import infer_response
from dnnserve.front.service import Exchange, Service
from dnnserve.lifecycle.requests import Answer, IndexWanted, LoadWanted, Question, UnloadWanted

__all__ = ["INFERENCE_SERVICE", "MODEL_INFER", "REPOSITORY_CHANGES", "inference_methods"]

INFERENCE_SERVICE: str = inference.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
MODEL_INFER = f"/{INFERENCE_SERVICE}/ModelInfer"
REPOSITORY_CHANGES = (f"/{INFERENCE_SERVICE}/RepositoryModelLoad", f"/{INFERENCE_SERVICE}/RepositoryModelUnload")
"""Methods that may take long."""

_EXTENSIONS = (
    *("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics", "parameters"),
)


def inference_methods(service: Service) -> Methods:
    """Handlers of the service's methods by path."""
    answers = {
        "ServerLive": _server_live,
        "ServerReady": _server_ready,
        "ServerMetadata": _server_metadata,
        "ModelReady": _model_ready,
        "ModelMetadata": _model_metadata,
        "ModelConfig": _model_config,
        "ModelStatistics": _model_statistics,
    }
    questions = {
        "RepositoryIndex": _repository_index,
        "RepositoryModelLoad": _repository_model_load,
        "RepositoryModelUnload": _repository_model_unload,
    }
    return {
        MODEL_INFER: service.inferring(partial(_model_infer, service)),
        **{f"/{INFERENCE_SERVICE}/{name}": service.answering(partial(act, service)) for name, act in answers.items()},
        **{f"/{INFERENCE_SERVICE}/{name}": service.asking(act) for name, act in questions.items()},
    }


def _model_infer(service: Service, exchange: Exchange, serialized: bytes) -> None:
    """Probabilities, or classes as strings, of the rows in the request."""
    service.infer(exchange, parse_infer(serialized), infer_response)


def _server_live(_service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """That the process answers."""
    return inference.ServerLiveResponse(live=True)


def _server_ready(service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """Whether requests can be answered now."""
    return inference.ServerReadyResponse(ready=service.ready())


def _server_metadata(_service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """Name, version and extensions."""
    return inference.ServerMetadataResponse(name="dnnserve", version=__version__, extensions=_EXTENSIONS)


def _model_ready(service: Service, exchange: Exchange, serialized: bytes) -> Any:
    """Whether a loaded model can answer now; NOT_FOUND for one that is not loaded."""
    request = parse(inference.ModelReadyRequest, serialized)
    exchange.spec = service.catalog.find(request.name, request.version)
    return inference.ModelReadyResponse(ready=service.ready())


def _model_metadata(service: Service, exchange: Exchange, serialized: bytes) -> Any:
    """Versions, inputs and outputs of a model."""
    request = parse(inference.ModelMetadataRequest, serialized)
    exchange.spec = spec = service.catalog.find(request.name, request.version)
    return metadata_message(spec, service.catalog.versions(request.name))


def _model_config(service: Service, exchange: Exchange, serialized: bytes) -> Any:
    """A model's configuration in Triton's words."""
    request = parse(inference.ModelConfigRequest, serialized)
    exchange.spec = spec = service.catalog.find(request.name, request.version)
    return inference.ModelConfigResponse(config=config_message(spec))


def _model_statistics(service: Service, exchange: Exchange, serialized: bytes) -> Any:
    """Counters of one model, of all its versions, or of every model, as Triton gives them."""
    request = parse(inference.ModelStatisticsRequest, serialized)
    specs = service.catalog.specs
    if request.name:
        exchange.spec = found = service.catalog.find(request.name, request.version)
        specs = tuple(
            spec for spec in specs if spec.key == found.key or (not request.version and spec.key.name == request.name)
        )
    snapshots = [statistics_message(spec.key, service.statistics.snapshot(spec.key)) for spec in specs]
    return inference.ModelStatisticsResponse(model_stats=snapshots)


_Question = tuple[Question, Callable[[Answer], Any]]
"""What the repository is asked, and what makes a response of its answer."""


def _repository_index(_exchange: Exchange, serialized: bytes) -> _Question:
    """All versions, with their states."""
    request = parse(inference.RepositoryIndexRequest, serialized)
    entry = inference.RepositoryIndexResponse.ModelIndex

    def respond(answer: Answer) -> Any:
        assert isinstance(answer, tuple)
        return inference.RepositoryIndexResponse(
            models=[
                entry(name=each.name, version=str(each.version), state=each.state, reason=each.reason)
                for each in answer
            ]
        )

    return IndexWanted(request.ready), respond


def _repository_model_load(_exchange: Exchange, serialized: bytes) -> _Question:
    """Load a model; answered when it serves."""
    request = parse(inference.RepositoryModelLoadRequest, serialized)
    for name in request.parameters:
        raise InvalidRequestError(
            f"parameter {shorten(name)} of a load is not supported: a model is configured by a section [models.NAME] of the "
            "server's file (SIGHUP reads it again), and its files are in the repository"
        )
    return LoadWanted(request.model_name), lambda _answer: inference.RepositoryModelLoadResponse()


def _repository_model_unload(_exchange: Exchange, serialized: bytes) -> _Question:
    """Unload a model; answered when nothing of it is left."""
    request = parse(inference.RepositoryModelUnloadRequest, serialized)
    for name in request.parameters:
        if name != "unload_dependents":  # nothing depends on a model here
            raise InvalidRequestError(f"parameter {shorten(name)} of an unload is not supported; leave it out")
    return UnloadWanted(request.model_name), lambda _answer: inference.RepositoryModelUnloadResponse()
