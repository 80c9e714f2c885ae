"""grpc.health.v1 for load balancers and Kubernetes, and server reflection for tools such as grpcurl."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dnnserve.catalog import shorten
from dnnserve.front.call import Call, Methods

__all__ = ["Health", "enable_reflection"]

_REFLECTION_THREADS = _WATCH_THREADS = 4
_CHECK = f"/{health.SERVICE_NAME}/Check"


class Health:
    """The status of the server ("") and of each of its services: NOT_SERVING until told otherwise. Thread-safe: `_lock` guards
    `_serving` and `_final`.

    Args:
        services: Full names of the services that answer inference requests.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._services = ("", *services)
        self._lock = threading.Lock()
        self._serving = self._final = False
        self._servicer = health.HealthServicer()
        self.set_serving(False)

    @property
    def methods(self) -> Methods:
        """The handler of Check, by path."""
        return {_CHECK: self._check}

    def add_watch(self, server: grpc.Server) -> None:
        """Let clients watch. Waiting for a stream's request takes a thread; they have a few of their own."""

        def watch(message: bytes, context: grpc.ServicerContext, send: Callable[[Any], None]) -> None:
            self._servicer.Watch(_parsed(health_pb2.HealthCheckRequest, message, context), context, send)

        # Non-blocking: a stream, which lives as long as its client, must not hold a thread.
        watch.experimental_non_blocking = True  # type: ignore[attr-defined]
        watch.experimental_thread_pool = ThreadPoolExecutor(_WATCH_THREADS, "dnnserve-health")  # type: ignore[attr-defined]
        response = health_pb2.HealthCheckResponse.SerializeToString
        _add(server, health.SERVICE_NAME, "Watch", grpc.unary_stream_rpc_method_handler(watch, None, response))

    def set_serving(self, serving: bool) -> None:
        """Announce whether requests are answered, to Check and to every open Watch."""
        with self._lock:
            if self._final:
                return
            self._serving = serving
            status = health_pb2.HealthCheckResponse
            for service in self._services:
                self._servicer.set(service, status.SERVING if serving else status.NOT_SERVING)

    def shut_down(self) -> None:
        """Announce NOT_SERVING for good."""
        self.set_serving(False)
        with self._lock:
            self._final = True

    def _check(self, call: Call, message: bytes) -> None:
        try:
            service = health_pb2.HealthCheckRequest.FromString(message).service
        except DecodeError:
            call.fail(grpc.StatusCode.INVALID_ARGUMENT, "the request is no grpc.health.v1.HealthCheckRequest")
            return
        if service not in self._services:
            call.fail(grpc.StatusCode.NOT_FOUND, f"there is no service {shorten(service)}")
            return
        status = health_pb2.HealthCheckResponse
        answer = status(status=status.SERVING if self._serving else status.NOT_SERVING)
        call.finish(answer.SerializeToString())


def enable_reflection(server: grpc.Server, services: Sequence[str]) -> None:
    """Let clients ask for the services and their messages.

    A reflection stream holds a thread until its client ends it; these have a few of their own, so that idle ones cannot take
    those that answer requests.
    """
    servicer: Any = reflection.ReflectionServicer((*services, health.SERVICE_NAME, reflection.SERVICE_NAME))
    request, response = reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse

    def describe(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        requests = (_parsed(request, message, context) for message in messages)
        answers: Iterator[Any] = servicer.ServerReflectionInfo(requests, context)
        yield from answers

    describe.experimental_thread_pool = ThreadPoolExecutor(_REFLECTION_THREADS, "dnnserve-reflection")  # type: ignore[attr-defined]
    handler = grpc.stream_stream_rpc_method_handler(describe, None, response.SerializeToString)
    _add(server, reflection.SERVICE_NAME, "ServerReflectionInfo", handler)


def _add(server: grpc.Server, service: str, method: str, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))


def _parsed(kind: Any, message: bytes, context: grpc.ServicerContext) -> Any:
    """The message; read here because grpcio keeps what its own deserializer fails on for ever, traceback and all."""
    try:
        return kind.FromString(message)
    except DecodeError:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no {kind.DESCRIPTOR.full_name}")
