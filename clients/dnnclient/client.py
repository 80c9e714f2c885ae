"""Client: typed calls to one server. The load generator, which counts failures rather than raising them, has its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from dnnapi.inference import grpc_service_pb2 as oip
from dnnapi.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from dnnapi.v1 import classifier_pb2 as pb
from dnnapi.v1.classifier_pb2_grpc import ClassifierServiceStub

from dnnclient import messages, tensors
from dnnclient.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ServerError,
    UnavailableError,
    error_from_rpc,
)
from dnnclient.results import Classification, ModelInfo
from dnncore.errors import ClosedError

__all__ = ["Client", "open_channel"]

_DEFAULT_OPTIONS: tuple[tuple[str, int], ...] = (
    # gRPC's own 4 MiB would refuse a batch of images; the limit that counts is the server's.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # gRPC waits 1 s after a refused connection and up to 2 min later on: a restarted server would be missed for long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
)
_POLL_S = 0.05


def open_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, int | str]] = (),
) -> grpc.Channel:
    """Return a channel with this package's defaults, which options override; it connects when it is first used."""
    merged = list({**dict(_DEFAULT_OPTIONS), **dict(options)}.items())
    if credentials is None:
        return grpc.insecure_channel(target, options=merged)
    return grpc.secure_channel(target, credentials, options=merged)


class Client:
    """A connection to one server. Thread-safe.

    >>> with Client("127.0.0.1:8001", model="digits") as client:     # doctest: +SKIP
    ...     print(client.classify(Path("seven.png"))[0].best.label)

    Every call raises a subclass of ClientError when it fails, and ClosedError after close().

    Args:
        target: "host:port", or any name that gRPC resolves.
        model: The model of calls that name none.
        timeout_s: For calls that give none. The server schedules by it: a request that cannot be answered in time is
            refused rather than computed in vain.
        credentials: For TLS; without them the connection is plain.
        options: gRPC channel options, over this package's own.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str = "",
        timeout_s: float = 30.0,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        self._target = target
        self._model = model
        self._timeout_s = timeout_s
        self._channel = open_channel(target, credentials, options)
        self._classifier = ClassifierServiceStub(self._channel)
        self._inference = GRPCInferenceServiceStub(self._channel)
        self._closed = False

    def classify(
        self,
        images: messages.Image | Sequence[messages.Image],
        *,
        model: str | None = None,
        version: str = "",
        top_k: int = 5,
        timeout_s: float | None = None,
    ) -> list[Classification]:
        """Classify one image or several, in one request.

        Args:
            images: `bytes` or `Path` of an image file, uint8 pixels [H, W, C] at the net's size, or the net's own float32
                input [C, H, W]; a sequence of one kind of them; or one array with a leading N.
            model: Name of the model; the client's own when None.
            version: Of the model; empty for the latest.
            top_k: Most labels for each image.
            timeout_s: Of this call; the client's own when None.

        Returns:
            One Classification an image, in order.

        Raises:
            OSError: a Path cannot be read.
        """
        request = messages.classify_request(images, model=self._model_name(model), version=version, top_k=top_k)
        response = self._call(self._classifier.Classify, request, timeout_s)
        messages.check_answer(request, response)
        return messages.classifications(response)

    def infer(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        outputs: Sequence[str] = (),
        model: str | None = None,
        version: str = "",
        timeout_s: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Run a model on tensors by name, over the Open Inference Protocol; works with any server that speaks it.

        Args:
            inputs: Arrays by input name, with the batch dimension; object arrays of bytes are BYTES tensors.
            outputs: Names of the outputs wanted; empty for all.
            model: Name of the model; the client's own when None.
            version: Of the model; empty for the latest.
            timeout_s: Of this call; the client's own when None.

        Returns:
            Arrays by output name, read-only.
        """
        request = oip.ModelInferRequest(
            model_name=self._model_name(model),
            model_version=version,
            inputs=[
                oip.ModelInferRequest.InferInputTensor(
                    name=name, datatype=tensors.datatype_of(array), shape=array.shape
                )
                for name, array in inputs.items()
            ],
            outputs=[oip.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs],
            raw_input_contents=[tensors.to_raw(array) for array in inputs.values()],
        )
        response = self._call(self._inference.ModelInfer, request, timeout_s)
        if len(response.raw_output_contents) != len(response.outputs):
            raise ServerError(
                f"{len(response.outputs)} outputs came back with {len(response.raw_output_contents)} raw contents; "
                "only answers with raw contents are understood"
            )
        return {
            output.name: tensors.from_raw(output.datatype, output.shape, raw)
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        }

    def model(self, name: str | None = None, version: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """Ask for a model's versions, input, labels and preprocessing."""
        request = pb.GetModelRequest(model_name=self._model_name(name), model_version=version)
        return messages.model_info(self._call(self._classifier.GetModel, request, timeout_s))

    def is_live(self, *, timeout_s: float | None = None) -> bool:
        """Whether a server answers; False when none does within the timeout."""
        return self._answers(lambda: self._call(self._inference.ServerLive, oip.ServerLiveRequest(), timeout_s).live)

    def is_ready(self, model: str | None = None, version: str = "", *, timeout_s: float | None = None) -> bool:
        """Whether the server takes requests now, or when a model is named whether that model does.

        False as well when no server answers within the timeout.

        Raises:
            NotFoundError: the server may answer so for a model that it does not have.
        """
        if model is None:
            request = oip.ServerReadyRequest()
            return self._answers(lambda: self._call(self._inference.ServerReady, request, timeout_s).ready)
        named = oip.ModelReadyRequest(name=model, version=version)
        return self._answers(lambda: self._call(self._inference.ModelReady, named, timeout_s).ready)

    def wait_until_ready(self, timeout_s: float = 30.0) -> None:
        """Return as soon as the server takes requests.

        Raises:
            UnavailableError: it did not within timeout_s.
        """
        end = time.monotonic() + timeout_s
        while not self.is_ready(timeout_s=max(_POLL_S, end - time.monotonic())):
            if time.monotonic() + _POLL_S > end:
                raise UnavailableError(f"{self._target} was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Close the connection; calls still under way end as cancelled. May be called again."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _model_name(self, name: str | None) -> str:
        name = self._model if name is None else name
        if not name:
            raise InvalidArgumentError("no model is named; give model=... here or to Client(...)")
        return name

    def _call(self, method: Callable[..., Any], request: object, timeout_s: float | None) -> Any:
        if self._closed:
            raise ClosedError(f"this client of {self._target} was closed; make a new one")
        try:
            return method(request, timeout=self._timeout_s if timeout_s is None else timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error

    @staticmethod
    def _answers(question: Callable[[], bool]) -> bool:
        try:
            return question()
        except (UnavailableError, DeadlineExceededError):
            return False
