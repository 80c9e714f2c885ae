"""Client: typed calls to one server. `dnnclient.aio` has the same for asyncio; the load generator sends by itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc
import numpy as np

from dnnclient import calls, messages
from dnnclient.base import DEFAULT_RETRY, POLL_S, Connections, open_several
from dnnclient.channels import open_channel
from dnnclient.errors import DeadlineExceededError, UnavailableError, error_from_rpc
from dnnclient.results import Classification, ModelInfo
from dnnclient.retries import RetryPolicy

__all__ = ["Client"]

_Result = TypeVar("_Result")


class Client:
    """Connections to one server. Thread-safe.

    >>> with Client("127.0.0.1:8001", model="digits") as client:     # doctest: +SKIP
    ...     print(client.classify(Path("seven.png"))[0].best.label)

    Every call raises a subclass of ClientError when it fails, and ClosedError after close().

    Args:
        target: "host:port", or any name that gRPC resolves.
        model: The model of calls that name none.
        timeout_s: For calls that give none, all attempts together. The server schedules by it: a request that cannot be
            answered in time is refused rather than computed in vain.
        retry: When a call is sent again; None: never.
        channels: Connections, used in turn. A server with several front ends gives each connection to one of them.
        token: A bearer token, for a server that asks for one. Without TLS, whoever listens reads it.
        priority: Of requests that give none: 1 is the most important, 2 the usual one, 8 the least; 0: the model's own. dnnserve
            goes by it before it reads a request; other servers may know it for tensors, or not at all.
        credentials: For TLS (`tls_credentials` makes them); without them the connection is plain.
        options: gRPC channel options, over this package's own.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str = "",
        timeout_s: float = 30.0,
        retry: RetryPolicy | None = DEFAULT_RETRY,
        channels: int = 1,
        token: str | None = None,
        priority: int = 0,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        self._target = target
        self._channels = open_several(lambda: open_channel(target, credentials, options), channels)
        self._connections = Connections(
            target, self._channels, model=model, timeout_s=timeout_s, retry=retry, token=token, priority=priority
        )

    def classify(
        self,
        images: messages.Image | Sequence[messages.Image],
        *,
        model: str | None = None,
        version: str = "",
        top_k: int = 5,
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> list[Classification]:
        """Classify one image or several, in one request.

        Args:
            images: `bytes` or `Path` of an image file, uint8 pixels [H, W, C] at the net's size, or the net's own float32
                input [C, H, W]; a sequence of one kind of them; or one array with a leading N.
            model: Name of the model; the client's own when None.
            version: Of the model; empty for the latest.
            top_k: Most labels for each image.
            timeout_s: Of this call; the client's own when None.
            priority: Of this call; the client's own when None.

        Returns:
            One Classification an image, in order.

        Raises:
            OSError: a Path cannot be read.
        """
        model = self._connections.model_name(model)
        priority = self._connections.priority(priority)
        call = calls.classify(images, model=model, version=version, top_k=top_k, priority=priority)
        return self._run(call, timeout_s)

    def infer(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        outputs: Sequence[str] = (),
        model: str | None = None,
        version: str = "",
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Run a model on tensors by name, over the Open Inference Protocol; works with any server that speaks it.

        Args:
            inputs: Arrays by input name, with the batch dimension; object arrays of bytes are BYTES tensors.
            outputs: Names of the outputs wanted; empty for all.
            model: Name of the model; the client's own when None.
            version: Of the model; empty for the latest.
            timeout_s: Of this call; the client's own when None.
            priority: Of this call; the client's own when None.

        Returns:
            Arrays by output name, read-only.
        """
        model = self._connections.model_name(model)
        priority = self._connections.priority(priority)
        return self._run(
            calls.infer(inputs, outputs=outputs, model=model, version=version, priority=priority), timeout_s
        )

    def model(self, name: str | None = None, version: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """Ask for a model's versions, input, labels and preprocessing."""
        return self._run(calls.model(self._connections.model_name(name), version), timeout_s)

    def is_live(self, *, timeout_s: float | None = None) -> bool:
        """Whether a server answers; False when none does within the timeout."""
        return self._answers(calls.live(), timeout_s)

    def is_ready(self, model: str | None = None, version: str = "", *, timeout_s: float | None = None) -> bool:
        """Whether the server takes requests now, or when a model is named whether that model does.

        False as well when no server answers within the timeout.

        Raises:
            NotFoundError: the server may answer so for a model that it does not have.
        """
        return self._answers(calls.ready(model, version), timeout_s)

    def wait_until_ready(self, timeout_s: float = 30.0) -> None:
        """Return as soon as the server takes requests.

        Raises:
            UnavailableError: it did not within timeout_s.
        """
        end = time.monotonic() + timeout_s
        while not self.is_ready(timeout_s=max(POLL_S, end - time.monotonic())):
            if time.monotonic() + POLL_S > end:
                raise UnavailableError(f"{self._target} was not ready within {timeout_s:g} s")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Close the connections; calls still under way end as cancelled. May be called again."""
        self._connections.closed = True
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: calls.Call[_Result], timeout_s: float | None) -> _Result:
        attempts = self._connections.attempts(call, timeout_s)
        while True:
            try:
                response = self._connections.send(call, attempts)
            except grpc.RpcError as error:
                wait_s = attempts.wait_s(error)
                if wait_s is None:
                    raise error_from_rpc(error) from error
                time.sleep(wait_s)
            else:
                return call.read(response)

    def _answers(self, call: calls.Call[bool], timeout_s: float | None) -> bool:
        try:
            return self._run(call, timeout_s)
        except (UnavailableError, DeadlineExceededError):
            return False
