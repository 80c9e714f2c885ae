"""The gRPC server put together: its port and limits, the front end that takes unary calls, health and reflection.

Unary methods of all services go the same way, the fast lane's or the public API's. Streams (inference, a watch of the health,
reflection) go through the public API in either case, in threads apart from all others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

import grpc

from dnnserve.config import ServerConfig
from dnnserve.errors import StartError
from dnnserve.front.answers import Answers
from dnnserve.front.authorization import AuthorizingInterceptor, objection_of
from dnnserve.front.call import Methods
from dnnserve.front.classifier import CLASSIFIER_SERVICE, CLASSIFY, classifier_methods
from dnnserve.front.gate import Gate
from dnnserve.front.health import REFLECTION, WATCH, Health, enable_reflection
from dnnserve.front.inference import CHANGES, INFERENCE_SERVICE, MODEL_INFER, inference_methods
from dnnserve.front.lane import Lane, probe
from dnnserve.front.places import StreamsObserver
from dnnserve.front.public import PublicHandlers
from dnnserve.front.service import Service
from dnnserve.front.streams import METHOD as STREAM_INFER
from dnnserve.front.streams import InferStreams
from dnnserve.security.doors import Doors

__all__ = ["GrpcServer"]

_log = logging.getLogger(__name__)

_SERVICES = (INFERENCE_SERVICE, CLASSIFIER_SERVICE)
_STREAMS = frozenset({f"/{INFERENCE_SERVICE}/{STREAM_INFER}", WATCH, REFLECTION})
_MAX_STREAMS = 1024
"""Of all kinds, those included that are about to be refused: each kind has a bound of its own, and they have 112 together."""

_STREAM_THREADS = 1  # for calls of methods that do not exist; the streams that there are have threads of their own
_TOLD_S = 1.0
"""In which those who watch the health read that it ends, if they read at all."""

_CALLS_ON_THEIR_WAY_S = 0.05
"""After its last answer, a client's next call takes the way there and back."""

_HANDSHAKE_S = 20.0
"""For TLS and the client's first words of HTTP/2; gRPC's own 120 s let who says nothing keep a place for as long."""

_MAX_PENDING_CALLS = 1 << 14
"""Calls that the core keeps until it is asked for them, each with 13 KB, also those that their clients have given up. Beyond it
gRPC cancels calls, which clients do not retry: we refuse. But where the lane gets so little of the processors that it cannot even
do that, calls would be kept until there is no memory left: 775 MB were, after five seconds.
"""


class GrpcServer:
    """A gRPC port with our services. Thread-safe: `_lock` guards `_started`; `start` is called once, `stop` once or more.

    Args:
        config: Address, limits and the front end asked for.
        doors: Credentials of the port, and who is let in.
        clock: Monotonic nanoseconds.
        max_connections: Open at the same time; gRPC closes one more again.
        reuse_port: Whether other processes may listen on the same port; they share its connections then.

    Raises:
        StartError: the port cannot be had, or the fast lane was asked for and does not run here.
    """

    def __init__(
        self,
        config: ServerConfig,
        doors: Doors,
        clock: Callable[[], int],
        max_connections: int,
        *,
        reuse_port: bool = False,
    ) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._started = False
        self._lane: Lane | None = None
        self._streams: InferStreams | None = None
        self._fast = _choose_fast(config.front_end)
        self.gate = Gate()
        self._answers = Answers()
        self.health = Health(_SERVICES)
        self._pool = ThreadPoolExecutor(_STREAM_THREADS if self._fast else config.grpc_threads, "dnnserve-rpc")
        authorizer = doors.authorizer
        self.objection = objection_of(None if authorizer is None else lambda: authorizer.current)
        self._judged: Collection[str] = ()
        self._count: StreamsObserver = lambda _method, _code: None  # nobody comes before `start`
        self._server = grpc.server(
            self._pool,
            interceptors=[AuthorizingInterceptor(self.objection, lambda path: path in self._judged, self._on_refused)],
            options=_options(config, max_connections, reuse_port),
            # Beyond this a call is refused by gRPC; below it waits for a thread. On the fast lane these are streams alone.
            maximum_concurrent_rpcs=_MAX_STREAMS if self._fast else 4 * config.grpc_threads,
        )
        host = f"[{config.host}]" if ":" in config.host else config.host
        try:
            address = f"{host}:{config.grpc_port}"
            if doors.grpc is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, doors.grpc)
        except RuntimeError as error:
            raise StartError(
                f"gRPC port {host}:{config.grpc_port} cannot be had: it is in use or not ours to take; "
                "choose another with --grpc-port"
            ) from error
        self.address = f"{host}:{port}"

    @property
    def front_end(self) -> str:
        """Which front end takes unary calls: "fast" or "public"."""
        return "fast" if self._fast else "public"

    def start(self, service: Service) -> None:
        """Begin to take calls."""
        methods: Methods = {**inference_methods(service), **classifier_methods(service), **self.health.methods}
        self._count = count = service.count_refused_stream
        self.health.add_watch(self._server, count)
        enable_reflection(self._server, _SERVICES, count)
        self._streams = InferStreams(methods[MODEL_INFER], self.gate, self._answers, self._clock, count)
        self._server.add_generic_rpc_handlers((self._streams.handler(INFERENCE_SERVICE),))
        if self._fast:
            self._lane = Lane(
                self._server,
                methods,
                self.gate,
                self._answers,
                service.refuse,
                self.objection,
                service.intake,
                service.door,
                (MODEL_INFER, CLASSIFY),
                self._config.max_calls,
                self._clock,
            )
        else:
            handlers = PublicHandlers(
                methods,
                (MODEL_INFER, CLASSIFY, *CHANGES),
                self.gate,
                self._answers,
                service.refuse,
                self.objection,
                self._clock,
            )
            self._judged = frozenset(methods)
            self._server.add_generic_rpc_handlers((handlers,))
        self._start()
        if self._lane is not None:
            self._lane.start()

    def refuse_connections(self, grace_s: float) -> None:
        """Close the port and tell clients to go elsewhere; calls that are inside have so long to end.

        A call that comes between the server's decision and a client's knowledge of it is cancelled by gRPC. Clients that send a
        call when they have the answer to the last send none while answers are held back, and have the word before the answer.
        """
        self._answers.hold_back()
        time.sleep(_CALLS_ON_THEIR_WAY_S)
        self._server.stop(grace_s)
        self._answers.let_go()

    def stop(self, grace_s: float) -> None:
        """End what is still open after so long, and give the port back."""
        self._start()  # gRPC gives a port back only when it stops serving on it
        self.health.wait_told(min(grace_s, _TOLD_S))
        self._server.stop(grace_s).wait()
        self.health.close()
        if self._lane is not None and not self._lane.close():
            _log.error("calls of the fast lane have not ended")
        self._pool.shutdown(wait=False)
        if self._streams is not None:
            self._streams.close()

    def _on_refused(self, path: str, code: grpc.StatusCode) -> None:
        """Count a stream that may not pass; clients must not be able to make up methods."""
        if path in _STREAMS:
            self._count(path.rpartition("/")[2], code)

    def _start(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                self._server.start()


def _choose_fast(front_end: str) -> bool:
    """Whether the fast lane is to be used.

    Raises:
        StartError: it was asked for by name and does not run here.
    """
    if front_end == "public":
        return False
    reason = probe()
    if reason is None:
        return True
    if front_end == "fast":
        raise StartError(f"{reason}; use --front-end public, or a release of grpcio from 1.64 to 1.85")
    _log.warning("%s; calls go through grpcio's public server, which takes several times the processor time", reason)
    return False


def _options(config: ServerConfig, max_connections: int, reuse_port: bool) -> list[tuple[str, int]]:
    size = config.max_message_mib << 20
    limits = {
        "grpc.max_connection_age_ms": config.max_connection_age_seconds * 1000,
        "grpc.max_connection_age_grace_ms": config.drain_seconds * 1000,
        "grpc.max_connection_idle_ms": config.max_connection_idle_seconds * 1000,
        "grpc.server_handshake_timeout_ms": _HANDSHAKE_S * 1000,
        "grpc.max_allowed_incoming_connections": max_connections,
    }
    return [
        ("grpc.max_receive_message_length", size),
        ("grpc.max_send_message_length", size),
        ("grpc.so_reuseport", int(reuse_port)),  # without need, two servers would share a port in silence
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
        # Large messages in few frames: with the defaults 600 KB took 260 or 350 us, by chance; with these always the former.
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.lookahead_bytes", 4 << 20),
        *((name, int(value)) for name, value in limits.items() if value > 0),
    ]
