"""`inference.GRPCInferenceService`: the Open Inference Protocol, with what Triton adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dnnapi.inference import grpc_service_pb2 as inference

from dnncore.version import __version__
from dnnserve.catalog import shorten
from dnnserve.errors import InvalidRequestError, UnsupportedError
from dnnserve.front.call import Methods
from dnnserve.front.model_info import config_message, metadata_message, statistics_message
from dnnserve.front.requests import parse, parse_infer
from dnnserve.front.responses import infer_response
from dnnserve.front.service import Exchange, Service
from dnnserve.lifecycle.requests import IndexWanted, LoadWanted, UnloadWanted
from dnnserve.questions import Answer, Question
from dnnserve.shared_memory.requests import Registration, Unregistration

__all__ = ["CHANGES", "INFERENCE_SERVICE", "MODEL_INFER", "inference_methods"]

INFERENCE_SERVICE: str = inference.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
MODEL_INFER = f"/{INFERENCE_SERVICE}/ModelInfer"
CHANGES = tuple(
    f"/{INFERENCE_SERVICE}/{name}"
    for name in (
        *("RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    )
)
"""Methods that may take long."""

_EXTENSIONS = (
    *("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics", "parameters"),
)
_SHARED_MEMORY = "system_shared_memory"


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
        "SystemSharedMemoryStatus": _system_shared_memory_status,
        "CudaSharedMemoryStatus": _cuda_shared_memory_status,
        "CudaSharedMemoryRegister": _cuda_shared_memory_register,
        "CudaSharedMemoryUnregister": _cuda_shared_memory_unregister,
    }
    questions: Mapping[str, Callable[[Exchange, bytes], _Question]] = {
        "RepositoryIndex": _repository_index,
        "RepositoryModelLoad": _repository_model_load,
        "RepositoryModelUnload": _repository_model_unload,
        "SystemSharedMemoryRegister": partial(_system_shared_memory_register, service),
        "SystemSharedMemoryUnregister": partial(_system_shared_memory_unregister, service),
    }
    return {
        MODEL_INFER: service.inferring(partial(_model_infer, service)),
        **{f"/{INFERENCE_SERVICE}/{name}": service.answering(partial(act, service)) for name, act in answers.items()},
        **{f"/{INFERENCE_SERVICE}/{name}": service.asking(act) for name, act in questions.items()},
    }


def _model_infer(service: Service, exchange: Exchange, serialized: bytes) -> None:
    """Probabilities, or classes as strings, of the rows in the request."""
    service.infer(exchange, parse_infer(serialized, service.regions), infer_response)


def _server_live(_service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """That the process answers."""
    return inference.ServerLiveResponse(live=True)


def _server_ready(service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """Whether requests can be answered now."""
    return inference.ServerReadyResponse(ready=service.ready())


def _server_metadata(service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """Name, version and extensions."""
    extensions = (*_EXTENSIONS, _SHARED_MEMORY) if service.regions.taken else _EXTENSIONS
    return inference.ServerMetadataResponse(name="dnnserve", version=__version__, extensions=extensions)


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


def _system_shared_memory_status(service: Service, _exchange: Exchange, serialized: bytes) -> Any:
    """Regions that are registered."""
    service.regions.check_taken()
    request = parse(inference.SystemSharedMemoryStatusRequest, serialized)
    response = inference.SystemSharedMemoryStatusResponse()
    for name, key, offset, nbytes in service.regions.registrations(request.name):
        region = response.regions[name]
        region.name, region.key, region.offset, region.byte_size = name, key, offset, nbytes
    return response


def _cuda_shared_memory_status(_service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """That there are no regions of device memory."""
    return inference.CudaSharedMemoryStatusResponse()


def _cuda_shared_memory_register(_service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """Refused."""
    raise UnsupportedError("CUDA shared memory is not supported; use system shared memory, or send tensors in requests")


def _cuda_shared_memory_unregister(_service: Service, _exchange: Exchange, _serialized: bytes) -> Any:
    """Nothing is left of regions that there are not; clients say so before they begin."""
    return inference.CudaSharedMemoryUnregisterResponse()


_Question = tuple[Question, Callable[[Answer], Any]]
"""What the server is asked, and what makes a response of its answer."""


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


def _system_shared_memory_register(service: Service, _exchange: Exchange, serialized: bytes) -> _Question:
    """Let requests speak of a region; answered when every front end knows it."""
    service.regions.check_taken()
    request = parse(inference.SystemSharedMemoryRegisterRequest, serialized)
    wanted = Registration(request.name, request.key, request.offset, request.byte_size)
    return wanted, lambda _answer: inference.SystemSharedMemoryRegisterResponse()


def _system_shared_memory_unregister(service: Service, _exchange: Exchange, serialized: bytes) -> _Question:
    """Let requests speak of a region no more; answered when every front end knows it."""
    service.regions.check_taken()
    request = parse(inference.SystemSharedMemoryUnregisterRequest, serialized)
    return Unregistration(request.name), lambda _answer: inference.SystemSharedMemoryUnregisterResponse()
