"""A server in this process that answers by rules: no model, no batching, but bounds, states and statuses like the real one."""

from __future__ import annotations

import json
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from dnnapi.inference import grpc_service_pb2 as oip
from dnnapi.inference import grpc_service_pb2_grpc as oip_grpc
from dnnapi.v1 import classifier_pb2 as pb
from dnnapi.v1 import classifier_pb2_grpc as pb_grpc

from dnncore.preprocessing import Preprocessing

NUM_LABELS = 10
PREPROCESSING = Preprocessing.squash(color="gray", height=2, width=3, scale=1.0, mean=(0.0,), std=(1.0,))
VERSIONS = ("1", "2")


def image(index: int) -> bytes:
    """Bytes that the fake takes for an image of the label with this index."""
    return b"image %d" % index


class FakeServer:
    """Answers on 127.0.0.1. Thread-safe.

    Rules: model "digits" has versions 1 and 2. The label of `image(i)` is i, of a tensor's image its first element; further
    labels follow in order, each half as probable. Model "abort CODE" answers with that status. Above `max_in_flight` calls
    at a time the answer is RESOURCE_EXHAUSTED. While `draining`, everything but liveness is UNAVAILABLE.
    A call waits until `gather` calls wait together, or its deadline is over. Before any of this the first calls end as `refusals`
    say: with a status, and a pushback in ms if there is one. `peers` and `metadata` are those of the Classify calls.

    Args:
        max_in_flight: Most Classify calls at a time.
        gather: Calls that are answered together.
        answers_lost: Classifications that each answer lacks: a defect.
    """

    def __init__(self, *, max_in_flight: int = 64, gather: int = 1, answers_lost: int = 0) -> None:
        self.max_in_flight = max_in_flight
        self.gather = gather
        self.answers_lost = answers_lost
        self.draining = False
        self.num_calls = 0
        self.most_in_flight = 0
        self.requests: list[pb.ClassifyRequest] = []
        self.refusals: deque[tuple[grpc.StatusCode, str | None]] = deque()
        self.num_refused = 0
        self.peers: set[str] = set()
        self.metadata: list[dict[str, str | bytes]] = []
        self._in_flight = 0
        self._gathered = 0
        self._change = threading.Condition()  # guards everything above
        self._server = grpc.server(ThreadPoolExecutor(32), options=(("grpc.so_reuseport", 0),))
        pb_grpc.add_ClassifierServiceServicer_to_server(_Classifier(self), self._server)
        oip_grpc.add_GRPCInferenceServiceServicer_to_server(_Inference(self), self._server)
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop; calls under way are cancelled."""
        self._server.stop(None).wait()

    def wait_for_calls(self, count: int) -> None:
        """Return when so many Classify calls have come in."""
        with self._change:
            assert self._change.wait_for(lambda: self.num_calls >= count, timeout=30)

    def refuse(self, context: grpc.ServicerContext) -> None:
        """Note who calls, and end the call if it is to be refused."""
        with self._change:
            self.peers.add(context.peer())
            self.metadata.append(dict(context.invocation_metadata()))
            if not self.refusals:
                return
            code, pushback = self.refusals.popleft()
            self.num_refused += 1
        if pushback is not None:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", pushback),))
        context.abort(code, "refused")

    def check(self, name: str, version: str, context: grpc.ServicerContext) -> None:
        """Answer for a model that cannot."""
        if name.startswith("abort "):
            context.abort(grpc.StatusCode[name.split()[1]], "told to")
        if self.draining:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server is draining")
        if name != "digits" or version not in ("", *VERSIONS):
            context.abort(grpc.StatusCode.NOT_FOUND, f"model {name!r} version {version!r} is not loaded")

    def hold(self, request: pb.ClassifyRequest, context: grpc.ServicerContext) -> None:
        """Count a call in and let it wait for its companions."""
        with self._change:
            self.num_calls += 1
            self.requests.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            refused = self._in_flight > self.max_in_flight
            self._gathered += not refused
            group = -(-self._gathered // self.gather) * self.gather
            self._change.notify_all()
            remaining = context.time_remaining()
            complete = refused or self._change.wait_for(
                lambda: self._gathered >= group, timeout=30 if remaining is None else min(remaining, 30)
            )
            self._in_flight -= 1
        if not complete:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too few calls came together in time")
        if refused:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self.max_in_flight} requests wait already")


class _Classifier(pb_grpc.ClassifierServiceServicer):  # type: ignore[misc]  # generated, untyped
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def Classify(self, request: pb.ClassifyRequest, context: grpc.ServicerContext) -> pb.ClassifyResponse:
        self._server.refuse(context)
        self._server.check(request.model_name, request.model_version, context)
        self._server.hold(request, context)
        try:
            indices = _tensor_labels(request.tensor) if request.HasField("tensor") else _image_labels(request.images)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return pb.ClassifyResponse(
            model_name=request.model_name,
            model_version=request.model_version or VERSIONS[-1],
            classifications=[_labels(index, request.top_k) for index in indices[self._server.answers_lost :]],
            request_id=request.request_id,
        )

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:
        self._server.check(request.model_name, request.model_version, context)
        return pb.GetModelResponse(
            model_name=request.model_name,
            model_version=request.model_version or VERSIONS[-1],
            versions=VERSIONS,
            input_shape=PREPROCESSING.input_shape,
            labels=[f"label {index}" for index in range(NUM_LABELS)],
            preprocessing_json=json.dumps(PREPROCESSING.to_dict()),
            max_batch_size=8,
        )


class _Inference(oip_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # generated, untyped
    """Model "digits" answers each input under the name it came with, unchanged."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def ServerLive(self, request: oip.ServerLiveRequest, context: grpc.ServicerContext) -> oip.ServerLiveResponse:
        return oip.ServerLiveResponse(live=True)

    def ServerReady(self, request: oip.ServerReadyRequest, context: grpc.ServicerContext) -> oip.ServerReadyResponse:
        return oip.ServerReadyResponse(ready=not self._server.draining)

    def ModelReady(self, request: oip.ModelReadyRequest, context: grpc.ServicerContext) -> oip.ModelReadyResponse:
        self._server.check(request.name, request.version, context)
        return oip.ModelReadyResponse(ready=True)

    def ModelInfer(self, request: oip.ModelInferRequest, context: grpc.ServicerContext) -> oip.ModelInferResponse:
        self._server.check(request.model_name, request.model_version, context)
        wanted = {output.name for output in request.outputs} or {tensor.name for tensor in request.inputs}
        pairs = [
            (tensor, raw)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
            if tensor.name in wanted
        ]
        response = oip.ModelInferResponse(model_name=request.model_name, raw_output_contents=[raw for _, raw in pairs])
        for tensor, _ in pairs:
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        return response


def _image_labels(images: Any) -> list[int]:
    indices = []
    for position, data in enumerate(images):
        if not data.startswith(b"image "):
            raise ValueError(f"image {position}: {len(data)} bytes are not an image")
        indices.append(int(data.split()[1]))
    return indices


def _tensor_labels(tensor: pb.Tensor) -> list[int]:
    height, width, channels = PREPROCESSING.height, PREPROCESSING.width, PREPROCESSING.channels
    shapes = {"UINT8": (height, width, channels), "FP32": (channels, height, width)}
    if tuple(tensor.shape[1:]) != shapes[tensor.datatype]:
        raise ValueError(f"tensor is {list(tensor.shape)}, {tensor.datatype} needs [N, *{shapes[tensor.datatype]}]")
    batch = np.frombuffer(tensor.contents, {"UINT8": "u1", "FP32": "<f4"}[tensor.datatype]).reshape(tuple(tensor.shape))
    return [int(single.flat[0]) for single in batch]


def _labels(first: int, top_k: int) -> pb.Classification:
    ranked = [(first + rank) % NUM_LABELS for rank in range(min(top_k or 5, NUM_LABELS))]
    return pb.Classification(
        labels=[
            pb.Label(index=index, name=f"label {index}", probability=2.0 ** -(rank + 1))
            for rank, index in enumerate(ranked)
        ]
    )
