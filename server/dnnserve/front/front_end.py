"""What takes calls: in the server's process, or in several of its own (`processes.py`). The server sees no difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dnnserve.catalog import Catalog, ModelSpec
from dnnserve.config import ServerConfig
from dnnserve.connections import Connections, RefusalsObserver
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError
from dnnserve.front.decoding import DecodePool, PixelLimits
from dnnserve.front.inference import inference_methods
from dnnserve.front.intake import Queue
from dnnserve.front.rest.connection import Calls
from dnnserve.front.rest.server import RestServer
from dnnserve.front.server import GrpcServer
from dnnserve.front.service import CallsObserver, Counters, Service
from dnnserve.front.tracing import open_tracing
from dnnserve.front.writing import WritePool
from dnnserve.questions import Control
from dnnserve.security.doors import open_doors
from dnnserve.shared_memory.regions import Regions
from dnnserve.shared_memory.requests import Registration

__all__ = ["Behind", "FrontEnd", "LocalFrontEnd"]


class FrontEnd(Protocol):
    """Takes calls on a port. Thread-safe; `start` is called once, `stop` at the end, also where it was never started."""

    @property
    def address(self) -> str:
        """Host and port."""
        ...

    @property
    def http_address(self) -> str | None:
        """Host and port of HTTP; None: it is not served."""
        ...

    @property
    def kind(self) -> str:
        """Which front end takes unary calls: "fast" or "public"."""
        ...

    @property
    def inside(self) -> int:
        """Calls that were taken in and whose answers have not been sent."""
        ...

    def start(self, specs: Sequence[ModelSpec]) -> None:
        """Begin to take calls for these models."""
        ...

    def serve(self, specs: Sequence[ModelSpec]) -> None:
        """Give requests to these models from now on, and to no others; it holds for every call that comes after this returns."""
        ...

    def holds(self, model: ModelKey) -> bool:
        """Whether a request was given to a model that `serve` has taken back, and has no answer yet."""
        ...

    def forget(self, model: ModelKey) -> None:
        """A model is gone, and nothing holds it."""
        ...

    def add_region(self, registration: Registration, fd: int) -> None:
        """Let requests speak of a region of shared memory, whose descriptor is duplicated; when this returns they may.

        Raises:
            UnavailableError: a process does not answer, or has no descriptor left; then they may nowhere.
        """
        ...

    def remove_region(self, name: str) -> None:
        """Let no further request speak of a region."""
        ...

    def set_log_level(self, level: str) -> None:
        """Log from this level up."""
        ...

    def announce(self, serving: bool, *, final: bool = False) -> None:
        """Say by the health service whether requests are answered; nothing is said after the final word."""
        ...

    def close_port(self, grace_s: float) -> None:
        """Take no new connections and send clients elsewhere; calls that are inside have so long to end."""
        ...

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no call is inside; False: some still are."""
        ...

    def stop(self, grace_s: float) -> None:
        """End what is still open after so long, and give the port back."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Behind:
    """What a front end calls. Immutable.

    Args:
        queue: Where requests go.
        statistics: Counters of the models.
        on_calls_end: Told of the ends of calls.
        ready: Whether requests can be answered now.
        control: The server.
        clock: Monotonic nanoseconds, the scheduler's.
        on_refused: Told of connections that are closed again.
    """

    queue: Queue
    statistics: Counters
    on_calls_end: CallsObserver
    ready: Callable[[], bool]
    control: Control
    clock: Callable[[], int]
    on_refused: RefusalsObserver


class LocalFrontEnd:
    """A front end in this process. Thread-safe.

    Args:
        config: Address and limits.
        behind: What it calls.
        connections: How many may be open.
        reuse_port: Whether other processes may listen on the same port.

    Raises:
        StartError: the port cannot be had, certificates or tokens cannot be used, or the fast lane or tracing was asked for and
            cannot be had here.
    """

    def __init__(
        self, config: ServerConfig, behind: Behind, connections: Connections, *, reuse_port: bool = False
    ) -> None:
        self._config = config
        self._connections = connections
        self._behind = behind
        self._tracer = open_tracing(config.trace_endpoint, config.trace_ratio)
        doors = open_doors(config)
        self._server = GrpcServer(config, doors, behind.clock, connections.grpc, reuse_port=reuse_port)
        self._http: RestServer | None = None
        self._service: Service | None = None
        if config.http_port is not None:
            try:
                self._http = RestServer(config, doors.http, reuse_port=reuse_port)
            except StartError:
                self._server.stop(0.0)
                raise
        self._regions = Regions(
            taken=config.shared_memory,
            most_image_bytes=config.max_message_mib << 20,
            most_copied_bytes=config.max_shared_memory_input_mib << 20,
        )
        limits = PixelLimits(int(config.max_request_megapixels * 1e6), int(config.max_decoding_megapixels * 1e6))
        self._decoder = DecodePool(limits, config.max_queue_requests)
        self._writer = WritePool()

    @property
    def address(self) -> str:
        """Host and port."""
        return self._server.address

    @property
    def http_address(self) -> str | None:
        """Host and port of HTTP; None: it is not served."""
        return None if self._http is None else self._http.address

    @property
    def kind(self) -> str:
        """Which front end takes unary calls: "fast" or "public"."""
        return self._server.front_end

    @property
    def inside(self) -> int:
        """Calls that were taken in and whose answers have not been sent."""
        return self._server.gate.inside

    def start(self, specs: Sequence[ModelSpec]) -> None:
        """Begin to take calls for these models."""
        config, behind = self._config, self._behind
        self._service = service = Service(
            *(
                Catalog(specs),
                behind.queue,
                self._decoder,
                self._writer,
                behind.statistics,
                behind.ready,
                behind.on_calls_end,
                behind.control,
            ),
            *(config.access_log, self._regions, behind.clock, self._tracer),
        )
        self._server.start(service)
        if self._http is not None:
            ours = inference_methods(service), service.refuse, self._server.objection
            calls = Calls(*ours, self._server.gate, behind.clock)
            self._http.serve(calls, self._connections.http, lambda: behind.on_refused("http", 1))

    def serve(self, specs: Sequence[ModelSpec]) -> None:
        """Give requests to these models from now on, and to no others; it holds for every call that comes after this returns."""
        assert self._service is not None
        self._service.serve(specs)

    def holds(self, model: ModelKey) -> bool:
        """Whether a request was given to a model that `serve` has taken back, and has no answer yet."""
        return self._service is not None and self._service.holds(model)

    def forget(self, model: ModelKey) -> None:
        """Nothing is kept of it."""

    def add_region(self, registration: Registration, fd: int) -> None:
        """Let requests speak of a region of shared memory, whose descriptor is duplicated."""
        self._regions.add(registration, fd)

    def remove_region(self, name: str) -> None:
        """Let no further request speak of a region."""
        self._regions.remove(name)

    def set_log_level(self, level: str) -> None:
        """The server's process has done it."""

    def announce(self, serving: bool, *, final: bool = False) -> None:
        """Say by the health service whether requests are answered; nothing is said after the final word."""
        if final:
            self._server.health.shut_down()
            if self._http is not None:
                self._http.ask_to_leave()
        else:
            self._server.health.set_serving(serving)

    def close_port(self, grace_s: float) -> None:
        """Take no new connections and send clients elsewhere; calls that are inside have so long to end."""
        if self._http is not None:
            self._http.refuse_connections()
        self._server.refuse_connections(grace_s)

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no call is inside; False: some still are."""
        return self._server.gate.wait_empty(timeout_s)

    def stop(self, grace_s: float) -> None:
        """End what is still open after so long, and give the port back."""
        if self._http is not None:
            self._http.stop(grace_s)
        self._server.stop(grace_s)
        self._decoder.close()
        self._writer.close()
        self._regions.close()
        if self._tracer is not None:
            self._tracer.close()
