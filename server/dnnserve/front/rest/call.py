"""A request over HTTP as a `Call`, which the handlers of gRPC's methods end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import grpc

from dnnserve.front.call import Trailer

__all__ = ["HTTP_STATUS", "Failure", "RestCall"]

_CLIENT_CLOSED_REQUEST = 499  # nobody reads it; nginx's number, for logs

HTTP_STATUS: dict[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.CANCELLED: _CLIENT_CLOSED_REQUEST,
    grpc.StatusCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
"""What each status of `front/status.py` is over HTTP."""

_COME_AGAIN = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call ends that has no response. Immutable.

    Args:
        status: Of HTTP.
        text: For the client.
        retry_after_s: When it may come again; None: the same request fails again.
    """

    status: int
    text: str
    retry_after_s: int | None = None


class RestCall:
    """A `Call`. Thread-safe: what the connection's thread and others share is written once.

    Args:
        method: The method's name.
        arrival_ns: When its headers came.
        peer: The client's address.
        metadata: The request's headers.
        end: Told of the response or the failure; called once, from any thread, and does not block.
    """

    deadline_ns = None
    """HTTP has none; the request's parameter `timeout` is one."""

    def __init__(
        self,
        method: str,
        arrival_ns: int,
        peer: str,
        metadata: Sequence[tuple[str, str | bytes]],
        end: Callable[[bytes | Failure], None],
    ) -> None:
        self.method = method
        self.arrival_ns = arrival_ns
        self.metadata = metadata
        self.cancelled = False
        self._peer = peer
        self._end = end
        self._act: Callable[[], None] | None = None

    def peer(self) -> str:
        """The client's address in gRPC's words."""
        return self._peer

    def on_cancel(self, act: Callable[[], None]) -> None:
        """Act when the client has gone, at once if it has."""
        self._act = act
        if self.cancelled:  # written before `_act` is read there, so one of the two threads sees the other's
            act()

    def cancel(self) -> None:
        """The client has gone."""
        self.cancelled = True
        if self._act is not None:
            self._act()

    def finish(self, response: bytes) -> None:
        """End the call with its serialized response."""
        self._end(response)

    def fail(self, code: grpc.StatusCode, text: str, trailers: Sequence[Trailer] = ()) -> None:
        """End the call with an error; a client is told in whole seconds when to come again."""
        status = HTTP_STATUS[code]
        milliseconds = int(dict(trailers).get("grpc-retry-pushback-ms", 0))
        self._end(Failure(status, text, max(1, math.ceil(milliseconds / 1000)) if status in _COME_AGAIN else None))
