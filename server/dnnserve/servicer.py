"""The two gRPC services over one loaded catalog: the Open Inference Protocol (with Triton's additions) and our own Classifier."""

# The protocol gives the methods their names and arguments.
# ruff: noqa: N802, ARG002

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier

from dnncore.version import __version__
from dnnserve import converters
from dnnserve.calls import Gate, WaitingCalls
from dnnserve.catalog import Catalog, ModelSpec
from dnnserve.converters import InferenceInput
from dnnserve.envelope import Answer, InferenceRequest
from dnnserve.errors import DeadlineExpiredError
from dnnserve.model_info import config_message, metadata_message, statistics_message
from dnnserve.statistics import Statistics
from dnnserve.status import status_of

__all__ = ["CallObserver", "ClassifierServicer", "InferenceServicer", "Service"]

CallObserver = Callable[[ModelSpec | None, str, grpc.StatusCode], None]
"""Called at the end of each RPC with its model (None: it named none that is loaded), its method and its status."""

_EXTENSIONS = ("classification", "model_configuration", "statistics", "parameters")
_NO_DEADLINE_S = 10 * 365 * 86400  # gRPC gives an RPC without a deadline the end of time as one
_Response = TypeVar("_Response")


@dataclass(slots=True)
class _Rpc:
    """One RPC while it is handled. Owned by one thread; not checked: its handler's."""

    context: grpc.ServicerContext
    arrival_ns: int
    spec: ModelSpec | None = None
    submitted: bool = False


class Service:
    """What both servicers share: lookup, deadlines, the way through the scheduler, and the ending of every RPC. Thread-safe.

    Args:
        catalog: The loaded models.
        calls: Brings requests to the scheduler and waits for them.
        gate: Closed while the server drains.
        statistics: Counters of the models.
        ready: Whether requests can be answered now.
        on_call_end: Told of each RPC's status.
        default_deadline_ns: For requests that bring none; 0: they wait as long as it takes.
        clock: The scheduler's clock.
    """

    def __init__(
        self,
        catalog: Catalog,
        calls: WaitingCalls,
        gate: Gate,
        statistics: Statistics,
        ready: Callable[[], bool],
        on_call_end: CallObserver,
        default_deadline_ns: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.catalog = catalog
        self.statistics = statistics
        self.ready = ready
        self._calls = calls
        self._gate = gate
        self._on_call_end = on_call_end
        self._default_deadline_ns = default_deadline_ns
        self._clock = clock

    def call(self, method: str, context: grpc.ServicerContext, handle: Callable[[_Rpc], _Response]) -> _Response:
        """Run an RPC's handler and end the RPC with its response, or with its error's status."""
        rpc = _Rpc(context, self._clock())
        try:
            response = handle(rpc)
        except Exception as error:  # noqa: BLE001 - the boundary: status_of logs what is not meant for clients
            if rpc.spec is not None and not rpc.submitted:
                self.statistics.record_refusal(rpc.spec.key, error, self._clock() - rpc.arrival_ns)
            code, message = status_of(error)
            self._on_call_end(rpc.spec, method, code)
            context.abort(code, message)
        self._on_call_end(rpc.spec, method, grpc.StatusCode.OK)
        return response

    def infer(
        self, rpc: _Rpc, name: str, version: str, request_id: str, read: Callable[[ModelSpec], InferenceInput]
    ) -> tuple[ModelSpec, InferenceInput, Answer]:
        """Take an inference RPC through the scheduler."""
        spec = rpc.spec = self.catalog.find(name, version)
        self._gate.enter(rpc.context)
        message = read(spec)
        deadline_ns = self._deadline_ns(rpc, message)
        if deadline_ns is not None and deadline_ns <= self._clock():
            raise DeadlineExpiredError("the deadline had passed when the request arrived: allow more time")
        request = InferenceRequest(
            spec.key, message.rows(), rpc.arrival_ns, deadline_ns, self._calls.deliver, request_id
        )
        rpc.submitted = True
        completion = self._calls.run(request, rpc.context)
        if isinstance(completion.outcome, Answer):
            return spec, message, completion.outcome
        raise completion.outcome

    def _deadline_ns(self, rpc: _Rpc, message: InferenceInput) -> int | None:
        limits_ns = [] if message.timeout_us is None else [message.timeout_us * 1000]
        remaining_s = rpc.context.time_remaining()
        if remaining_s is not None and remaining_s < _NO_DEADLINE_S:
            limits_ns.append(int(remaining_s * 1e9))
        if not limits_ns and self._default_deadline_ns:
            limits_ns.append(self._default_deadline_ns)
        return rpc.arrival_ns + min(limits_ns) if limits_ns else None


class InferenceServicer:
    """`inference.GRPCInferenceService`. Thread-safe."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer that the process answers."""
        return self._service.call("ServerLive", context, lambda _: inference.ServerLiveResponse(live=True))

    def ServerReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Say whether requests can be answered now."""
        ready = self._service.ready
        return self._service.call("ServerReady", context, lambda _: inference.ServerReadyResponse(ready=ready()))

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Say whether a loaded model can answer now; NOT_FOUND for one that is not loaded."""

        def handle(rpc: _Rpc) -> Any:
            rpc.spec = self._service.catalog.find(request.name, request.version)
            return inference.ModelReadyResponse(ready=self._service.ready())

        return self._service.call("ModelReady", context, handle)

    def ServerMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Name, version and extensions."""
        response = inference.ServerMetadataResponse(name="dnnserve", version=__version__, extensions=_EXTENSIONS)
        return self._service.call("ServerMetadata", context, lambda _: response)

    def ModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Versions, inputs and outputs of a model."""

        def handle(rpc: _Rpc) -> Any:
            catalog = self._service.catalog
            rpc.spec = catalog.find(request.name, request.version)
            return metadata_message(rpc.spec, catalog.versions(request.name))

        return self._service.call("ModelMetadata", context, handle)

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A model's configuration in Triton's words."""

        def handle(rpc: _Rpc) -> Any:
            rpc.spec = self._service.catalog.find(request.name, request.version)
            return inference.ModelConfigResponse(config=config_message(rpc.spec))

        return self._service.call("ModelConfig", context, handle)

    def ModelStatistics(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Counters of one model, of all its versions, or of every model, as Triton gives them."""

        def handle(rpc: _Rpc) -> Any:
            catalog, statistics = self._service.catalog, self._service.statistics
            specs = catalog.specs
            if request.name:
                rpc.spec = catalog.find(request.name, request.version)
                specs = tuple(
                    spec
                    for spec in specs
                    if spec.key == rpc.spec.key or (not request.version and spec.key.name == request.name)
                )
            messages = [statistics_message(spec.key, statistics.snapshot(spec.key)) for spec in specs]
            return inference.ModelStatisticsResponse(model_stats=messages)

        return self._service.call("ModelStatistics", context, handle)

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Probabilities, or classes as strings, of the rows in the request."""

        def handle(rpc: _Rpc) -> Any:
            spec, message, answer = self._service.infer(
                rpc,
                request.model_name,
                request.model_version,
                request.id,
                lambda spec: converters.read_infer(request, spec),
            )
            return converters.infer_response(request.id, spec, answer.outputs, message.top_k)

        return self._service.call("ModelInfer", context, handle)


class ClassifierServicer:
    """`dnnapi.v1.ClassifierService`. Thread-safe."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def Classify(self, request: Any, context: grpc.ServicerContext) -> Any:
        """The most probable labels of the images, or of the rows, in the request."""

        def handle(rpc: _Rpc) -> Any:
            spec, message, answer = self._service.infer(
                rpc,
                request.model_name,
                request.model_version,
                request.request_id,
                lambda spec: converters.read_classify(request, spec),
            )
            return converters.classify_response(request.request_id, spec, answer.outputs, message.top_k)

        return self._service.call("Classify", context, handle)

    def GetModel(self, request: Any, context: grpc.ServicerContext) -> Any:
        """What a client must know to prepare inputs and to read answers."""

        def handle(rpc: _Rpc) -> Any:
            catalog = self._service.catalog
            spec = rpc.spec = catalog.find(request.model_name, request.model_version)
            preprocessing = spec.preprocessing
            return classifier.GetModelResponse(
                model_name=spec.key.name,
                model_version=str(spec.key.version),
                versions=map(str, catalog.versions(spec.key.name)),
                input_shape=spec.input_shape,
                labels=spec.labels,
                preprocessing_json="" if preprocessing is None else json.dumps(preprocessing.to_dict()),
                max_batch_size=spec.max_batch_rows,
            )

        return self._service.call("GetModel", context, handle)
