"""grpc.health.v1 for load balancers and Kubernetes, and server reflection for tools such as grpcurl."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

__all__ = ["SERVICES", "Health", "enable_reflection"]

SERVICES = (
    inference.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name,
    classifier.DESCRIPTOR.services_by_name["ClassifierService"].full_name,
)
"""Full names of the services that answer inference requests."""

_REFLECTION_THREADS = 4


class Health:
    """The status of the server ("") and of each service in SERVICES: NOT_SERVING until told otherwise. Thread-safe.

    It answers from a thread of its own, so a server whose handler threads are all taken still says that it is there.
    """

    def __init__(self, server: grpc.Server) -> None:
        # Non-blocking: a Watch stream, which lives as long as its client, must not hold a thread.
        self._servicer = health.HealthServicer(experimental_non_blocking=True)
        pool = ThreadPoolExecutor(1, "dnnserve-health")
        self._servicer.Check = _in_pool(self._servicer.Check, pool)  # type: ignore[method-assign]
        self.set_serving(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def set_serving(self, serving: bool) -> None:
        """Announce whether requests are answered, to Check and to every open Watch."""
        status = health_pb2.HealthCheckResponse
        for service in ("", *SERVICES):
            self._servicer.set(service, status.SERVING if serving else status.NOT_SERVING)

    def shut_down(self) -> None:
        """Announce NOT_SERVING for good."""
        self._servicer.enter_graceful_shutdown()


def enable_reflection(server: grpc.Server) -> None:
    """Let clients ask for the services and their messages.

    A reflection stream holds a thread until its client ends it; these have a few of their own, so that idle ones cannot take
    those that answer requests.
    """
    servicer = reflection.ReflectionServicer((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME))
    pool = ThreadPoolExecutor(_REFLECTION_THREADS, "dnnserve-reflection")
    servicer.ServerReflectionInfo = _in_pool(servicer.ServerReflectionInfo, pool)  # type: ignore[method-assign]
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


def _in_pool(behavior: Callable[[Any, Any], Any], pool: ThreadPoolExecutor) -> Any:
    """Have grpcio run a method's behaviour in another pool than the server's; it looks for this attribute."""

    def run(request: Any, context: Any) -> Any:
        return behavior(request, context)

    run.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return run
