"""grpc.health.v1 for load balancers and Kubernetes, and server reflection for tools such as grpcurl."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dnnserve.catalog import shorten
from dnnserve.front.call import Call, Methods
from dnnserve.front.places import Places, StreamsObserver

__all__ = ["REFLECTION", "WATCH", "Health", "enable_reflection"]

WATCH, REFLECTION = f"/{health.SERVICE_NAME}/Watch", f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
"""Paths of the streams."""

_MOST_REFLECTIONS = 16
"""Open at once: one for each developer who looks around with a tool. Each holds a thread."""
_MOST_UNREAD_WATCHES = 64
"""Watches whose request has not come, which it does with the headers of one. Each holds a thread."""
_TELLING_THREADS = 64
"""As many clients can leave unread what they are told before others hear later of it."""
_MOST_WATCHES = 1024
"""Open at once: one for each load balancer, many times over. Each costs a stream's memory for as long as its client likes."""
_CHECK = f"/{health.SERVICE_NAME}/Check"


@dataclass(slots=True, eq=False)
class _Watch:
    """A client that watches. Guarded by the lock of `Health`.

    Args:
        service: Its name, which may be none of ours.
        send: Sends a message, and waits until the client has room for it.
        told: The status that was sent last; None: none yet.
        telling: Whether a thread is there to send what is new.
    """

    service: str
    send: Callable[[Any], None]
    told: int | None = None
    telling: bool = False


class Health:
    """The status of the server ("") and of each of its services: NOT_SERVING until told otherwise.

    Whoever sets the status waits for no client: grpcio sends a stream's message when the client has room for it, which may be
    never, so that watches are told by threads of their own. A client that was slow to read hears the latest status alone.

    Thread-safe: `_changed` guards `_serving`, `_final` and `_watches`.

    Args:
        services: Full names of the services that answer inference requests.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._services = ("", *services)
        self._changed = threading.Condition()
        self._serving = self._final = False
        self._watches: set[_Watch] = set()
        self._tellers = ThreadPoolExecutor(_TELLING_THREADS, "dnnserve-health-teller")
        refusal = f"the requests of {_MOST_UNREAD_WATCHES} watches have not come; retry later, or ask with Check"
        self._unread = Places(_MOST_UNREAD_WATCHES, refusal, "dnnserve-health")

    @property
    def methods(self) -> Methods:
        """The handler of Check, by path."""
        return {_CHECK: self._check}

    def add_watch(self, server: grpc.Server, on_refused: StreamsObserver) -> None:
        """Let clients watch. Waiting for a stream's request takes a thread; they have a few of their own.

        Args:
            server: Of the clients.
            on_refused: Told of watches for which there is no room.
        """
        exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
        refused = partial(on_refused, _name(WATCH), exhausted)

        def watch(messages: Iterator[bytes], context: grpc.ServicerContext, send: Callable[[Any], None]) -> None:
            with self._unread.take(context, refused):
                message = next(messages, None)
            if message is None:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "Watch takes exactly one request message")
            watch = _Watch(_parsed(health_pb2.HealthCheckRequest, message, context).service, send)
            with self._changed:
                has_room = len(self._watches) < _MOST_WATCHES
                if has_room and context.add_callback(partial(self._forget, watch)):  # else the client has gone
                    self._watches.add(watch)
                    self._have_told(watch)
            if not has_room:
                refused()
                context.abort(exhausted, f"{_MOST_WATCHES} clients watch the health already")

        # Non-blocking: a stream, which lives as long as its client, must not hold a thread.
        watch.experimental_non_blocking = True  # type: ignore[attr-defined]
        watch.experimental_thread_pool = self._unread.threads  # type: ignore[attr-defined]
        response = health_pb2.HealthCheckResponse.SerializeToString
        # A handler of one request would wait for that before it could refuse.
        _add(server, health.SERVICE_NAME, _name(WATCH), grpc.stream_stream_rpc_method_handler(watch, None, response))

    def set_serving(self, serving: bool) -> None:
        """Announce whether requests are answered, to Check and, soon, to every open Watch."""
        with self._changed:
            if self._final:
                return
            self._serving = serving
            for watch in self._watches:
                self._have_told(watch)

    def shut_down(self) -> None:
        """Announce NOT_SERVING for good."""
        self.set_serving(False)
        with self._changed:
            self._final = True

    def wait_told(self, timeout_s: float) -> bool:
        """Wait until every watch was sent the status; False: some client does not read."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(watch.telling for watch in self._watches), timeout_s)

    def close(self) -> None:
        """End the threads that tell, when the server has stopped."""
        self.shut_down()
        self._tellers.shutdown(wait=False)
        self._unread.close()

    def _have_told(self, watch: _Watch) -> None:
        """Called with the lock held."""
        if not watch.telling:
            watch.telling = True
            self._tellers.submit(self._tell, watch)

    def _tell(self, watch: _Watch) -> None:
        while (status := self._news_for(watch)) is not None:
            watch.send(health_pb2.HealthCheckResponse(status=status))

    def _news_for(self, watch: _Watch) -> int | None:
        """The status that is to be sent next; None: there is nothing more to tell, for now."""
        with self._changed:
            status = self._status(watch.service)
            if status != watch.told and watch in self._watches:
                watch.told = status
                return status
            watch.telling = False
            self._changed.notify_all()
            return None

    def _forget(self, watch: _Watch) -> None:
        with self._changed:
            self._watches.discard(watch)
            self._changed.notify_all()

    def _status(self, service: str) -> int:
        status = health_pb2.HealthCheckResponse
        if service not in self._services:
            return int(status.SERVICE_UNKNOWN)
        return int(status.SERVING if self._serving else status.NOT_SERVING)

    def _check(self, call: Call, message: bytes) -> None:
        try:
            service = health_pb2.HealthCheckRequest.FromString(message).service
        except DecodeError:
            call.fail(grpc.StatusCode.INVALID_ARGUMENT, "the request is no grpc.health.v1.HealthCheckRequest")
            return
        if service not in self._services:
            call.fail(grpc.StatusCode.NOT_FOUND, f"there is no service {shorten(service)}")
            return
        answer = health_pb2.HealthCheckResponse(status=self._status(service))
        call.finish(answer.SerializeToString())


def enable_reflection(server: grpc.Server, services: Sequence[str], on_refused: StreamsObserver) -> None:
    """Let clients ask for the services and their messages.

    A reflection stream holds a thread until its client ends it; these have a few of their own, so that idle ones cannot take
    those that answer requests, and one more is refused.

    Args:
        server: Of the clients.
        services: Full names of those that there are beside the health's and this one.
        on_refused: Told of streams for which there is no room.
    """
    refusal = f"{_MOST_REFLECTIONS} reflection streams are open, as many as may; retry later"
    refused = partial(on_refused, _name(REFLECTION), grpc.StatusCode.RESOURCE_EXHAUSTED)
    places = Places(_MOST_REFLECTIONS, refusal, "dnnserve-reflection")
    servicer: Any = reflection.ReflectionServicer((*services, health.SERVICE_NAME, reflection.SERVICE_NAME))
    request, response = reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse

    def describe(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        with places.take(context, refused):
            requests = (_parsed(request, message, context) for message in messages)
            answers: Iterator[Any] = servicer.ServerReflectionInfo(requests, context)
            yield from answers

    describe.experimental_thread_pool = places.threads  # type: ignore[attr-defined]
    handler = grpc.stream_stream_rpc_method_handler(describe, None, response.SerializeToString)
    _add(server, reflection.SERVICE_NAME, _name(REFLECTION), handler)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _add(server: grpc.Server, service: str, method: str, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))


def _parsed(kind: Any, message: bytes, context: grpc.ServicerContext) -> Any:
    """The message; read here because grpcio keeps what its own deserializer fails on for ever, traceback and all."""
    try:
        return kind.FromString(message)
    except DecodeError:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no {kind.DESCRIPTOR.full_name}")
