"""The server's configuration: a value, checked when it is made. Imports neither gRPC nor a backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from dnncore.dtypes import DType
from dnncore.errors import ConfigError

__all__ = [
    "ENGINES",
    "FRONT_ENDS",
    "LOG_LEVELS",
    "MOST_FRONT_ENDS",
    "PRECISIONS",
    "REPOSITORY_MODES",
    "ModelConfig",
    "ModelSection",
    "ServerConfig",
]

_MAX_PORT = 65535
_MAX_BATCH_ROWS = 4096
_MAX_DEADLINE_MS = 86_400_000
_LAST_PRIORITY = 8

MOST_FRONT_ENDS = 64
"""Processes that may take calls."""

PRECISIONS = {"fp32": DType.FLOAT32, "fp16": DType.FLOAT16, "bf16": DType.BFLOAT16, "int8": DType.INT8}
"""What a model may be computed in, by the name that users give."""

REPOSITORY_MODES = ("none", "poll", "explicit")
"""Who says which versions are served: nobody, after the start; the repository; clients."""

LOG_LEVELS = ("debug", "info", "warning", "error")

ENGINES = ("auto", "process", "thread")
"""Where devices may run."""

FRONT_ENDS = ("auto", "fast", "public")
"""What may take calls: the fast lane, grpcio's public server, or the former where it runs."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What holds for one model. Immutable.

    Args:
        max_batch_rows: Rows of a batch.
        default_deadline_ms: For requests that bring none; 0: none.
        precision: One of `PRECISIONS`; None: as the package says, else fp32.
        devices: As `dnncore.devices.resolve` reads it; None: all that there are.
        priority: 1 is the most important level, 8 the least; 0: the usual one.
    """

    max_batch_rows: int
    default_deadline_ms: float
    precision: str | None
    devices: str | None
    priority: int


@dataclass(frozen=True, slots=True)
class ModelSection:
    """What is set for one model alone, as `ModelConfig` has it; None: as for all. Immutable.

    Raises:
        ConfigError: a value is out of range.
    """

    max_batch_rows: int | None = None
    default_deadline_ms: float | None = None
    precision: str | None = None
    devices: str | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        _check_precision("precision", self.precision)
        _check_range("max_batch", self.max_batch_rows, 1, _MAX_BATCH_ROWS)
        _check_range("default_deadline_ms", self.default_deadline_ms, 0, _MAX_DEADLINE_MS)
        _check_range("priority", self.priority, 0, _LAST_PRIORITY)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything that can be set. Immutable.

    Args:
        model_repository: Folder of `name/version/` packages; exactly one of this and `model`.
        model: One package folder, an .onnx file or a .prototxt, served as version 1.
        weights: What such a file does not say; these five are as `ModelFile` has them.
        shape: See there.
        name: See there.
        labels: See there.
        preprocess: See there.
        repository_mode: Whether versions come and go while the server runs: "none"; "poll", by looks at the repository;
            "explicit", by RepositoryModelLoad and RepositoryModelUnload.
        repository_poll_seconds: From one look to the next.
        load_models: Models that "explicit" begins with; "*" stands for all.
        all_versions: Load every version of each model, not the latest alone.
        skip_bad_models: Serve the other models when a package cannot be loaded.
        host: Address to listen on.
        grpc_port: 0: any free one.
        http_port: Of the inference protocol over HTTP; 0: any free one; None: it is not served.
        metrics_port: Of /metrics, /healthz and /readyz; 0: any free one.
        tls_cert: The server's certificates, in PEM; None: connections are plain.
        tls_key: The key of the first of them.
        tls_client_ca: Authorities that must vouch for clients; None: any client may connect.
        metrics_tls: The metrics port speaks TLS too, with the same certificates.
        token_file: Who may call what, as `security.authorizer.parse_tokens` reads it; None: anybody, everything.
        devices: As `dnncore.devices.resolve` reads it; None: all of the machine.
        engines: Where a device runs: "process", in a process of its own, which can be lost and started again; "thread", in the
            server's; "auto": processes for GPUs, threads for the CPU.
        precision: What lies between a model's inputs and its outputs: one of `PRECISIONS`; None: as its package says, else fp32.
        device_memory_fraction: What models may take of a device's memory, together with whoever else uses it.
        batch_invariant: An image's answer has the same bits whatever it is batched with, because each is computed alone.
        max_batch_rows: Rows of a batch.
        max_queue_requests: Requests that may wait for a model.
        max_queue_delay_us: How long a request waits for company while a device is idle.
        hold_until_requests: The first batch waits for so many requests; for tests.
        front_ends: Processes that take calls, all on one port; 0: the server's own process does; None: so, unless
            `front_ends.decided` has looked at the machine, as the command does.
        front_memory_mib: Shared memory of each for requests that wait or run, a power of two.
        front_end: What takes calls: "fast", "public", or "auto" for the fast lane where it runs and the public API elsewhere.
        grpc_threads: Handler threads of the public front end: the requests that can be decoded, queued or running at once there.
        max_calls: Calls that may be open at the same time on the fast lane.
        max_connections: Connections that may be open at the same time; 0: by the limit of descriptors.
        max_connection_age_seconds: After so long a client is asked to connect anew; 0: never.
        max_connection_idle_seconds: A connection without calls is closed after so long; 0: never.
        shared_memory: Whether clients of this machine may register regions of POSIX shared memory for inputs and outputs.
        max_shared_memory_regions: Registered at the same time.
        max_shared_memory_mib: That these may have together.
        max_shared_memory_input_mib: Of the inputs there whose requests wait or run, in each process that takes calls.
        max_request_megapixels: Millions of pixels that the images of a request may have.
        max_decoding_megapixels: Millions of pixels that may be decoded at the same time.
        max_message_mib: Largest message that is read or sent.
        batch_timeout_seconds: A GPU whose batch runs for longer is taken out of service; 0: never.
        lame_duck_seconds: How long the server goes on serving, and says that it does not, once it was told to stop.
        drain_seconds: How long requests may take to finish after that.
        default_deadline_ms: For requests that bring none; 0: none.
        models: What is set for single models, by their names.
        warm_up_seconds: How long the batches of a device's models are timed before it takes requests; 0: not at all.
        save_costs: Whether what batches take is kept from one start to the next, in the folder of compiled kernels.
        deadline_margin_ms: Answers are due so long before the deadlines of their requests: they still have to reach the client.
        log_format: "text" or "json".
        log_level: One of `LOG_LEVELS`, from which on lines are logged.
        access_log: Whether each call's end is logged.
        trace_endpoint: Where OpenTelemetry's spans go, by OTLP over HTTP; None: nothing is traced.
        trace_ratio: The share of calls without a traceparent that are traced; the others follow their client's decision.
        ready_file: Written when the server is ready.

    Raises:
        ConfigError: a value is out of range, or two contradict each other.
    """

    model_repository: Path | None = None
    model: Path | None = None
    weights: Path | None = None
    shape: Sequence[tuple[str, tuple[int | str, ...]]] = ()
    name: str | None = None
    labels: Path | None = None
    preprocess: str | None = None
    repository_mode: str = "none"
    repository_poll_seconds: float = 15.0
    load_models: Sequence[str] = ()
    all_versions: bool = False
    skip_bad_models: bool = False
    host: str = "127.0.0.1"
    grpc_port: int = 8001
    http_port: int | None = None
    metrics_port: int = 8002
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    metrics_tls: bool = False
    token_file: Path | None = None
    devices: str | None = None
    engines: str = "auto"
    precision: str | None = None
    device_memory_fraction: float = 0.95
    batch_invariant: bool = False
    max_batch_rows: int = 32
    max_queue_requests: int = 1024
    max_queue_delay_us: int = 0
    hold_until_requests: int = 0
    front_end: str = "auto"
    front_ends: int | None = None
    front_memory_mib: int = 256
    grpc_threads: int = 64
    max_calls: int = 16_384
    max_connections: int = 0
    max_connection_age_seconds: float = 0.0
    max_connection_idle_seconds: float = 3600.0
    shared_memory: bool = False
    max_shared_memory_regions: int = 64
    max_shared_memory_mib: int = 4096
    max_shared_memory_input_mib: int = 1024
    max_request_megapixels: float = 400.0
    max_decoding_megapixels: float = 800.0
    max_message_mib: int = 64
    batch_timeout_seconds: float = 60.0
    lame_duck_seconds: float = 5.0
    drain_seconds: float = 30.0
    default_deadline_ms: float = 0.0
    models: Mapping[str, ModelSection] = field(default_factory=dict)
    warm_up_seconds: float = 1.0
    save_costs: bool = True
    deadline_margin_ms: float = 1.0
    log_format: str = "text"
    log_level: str = "info"
    access_log: bool = False
    trace_endpoint: str | None = None
    trace_ratio: float = 1.0
    ready_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.model_repository is None) == (self.model is None):
            raise ConfigError("give exactly one of --model-repository DIR and --model PATH")
        if self.model is None and self.file_arguments:
            raise ConfigError(f"{', '.join(self.file_arguments)}: for an .onnx file or a .prototxt, given with --model")
        if self.repository_mode not in REPOSITORY_MODES:
            raise ConfigError(
                f"--repository-mode {self.repository_mode} is unknown; use one of {', '.join(REPOSITORY_MODES)}"
            )
        if self.repository_mode != "none" and self.model_repository is None:
            raise ConfigError(
                f"--repository-mode {self.repository_mode} is for a repository, given with --model-repository"
            )
        if self.load_models and self.repository_mode != "explicit":
            raise ConfigError(
                "--load-model is for --repository-mode explicit; the others load all models by themselves"
            )
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"--log-level {self.log_level} is unknown; use one of {', '.join(LOG_LEVELS)}")
        if self.engines not in ENGINES:
            raise ConfigError(f"--engines {self.engines} is unknown; use one of {', '.join(ENGINES)}")
        if self.front_memory_mib & (self.front_memory_mib - 1):
            raise ConfigError(f"--front-memory-mib {self.front_memory_mib} is no power of two")
        if self.front_end not in FRONT_ENDS:
            raise ConfigError(f"--front-end {self.front_end} is unknown; use one of {', '.join(FRONT_ENDS)}")
        _check_precision("--precision", self.precision)
        if self.trace_endpoint is not None and not self.trace_endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"--trace-endpoint {self.trace_endpoint} is no URL such as http://127.0.0.1:4318/v1/traces"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key come together; one of them is missing")
        if self.tls_cert is None and (self.tls_client_ca is not None or self.metrics_tls):
            raise ConfigError("--tls-client-ca and --metrics-tls need --tls-cert and --tls-key")
        for flag, value, low, high in (
            ("--repository-poll-seconds", self.repository_poll_seconds, 0.05, 86_400),
            ("--device-memory-fraction", self.device_memory_fraction, 0.01, 1),
            ("--grpc-port", self.grpc_port, 0, _MAX_PORT),
            ("--http-port", self.http_port or 0, 0, _MAX_PORT),
            ("--metrics-port", self.metrics_port, 0, _MAX_PORT),
            ("--max-batch", self.max_batch_rows, 1, _MAX_BATCH_ROWS),
            ("--max-queue", self.max_queue_requests, 1, 1_000_000),
            ("--max-queue-delay-us", self.max_queue_delay_us, 0, 60_000_000),
            ("--hold-until-requests", self.hold_until_requests, 0, self.max_queue_requests),
            ("--grpc-threads", self.grpc_threads, 1, 4096),
            ("--max-calls", self.max_calls, 1, 1_000_000),
            ("--max-connections", self.max_connections, 0, 1_000_000),
            ("--max-connection-age-seconds", self.max_connection_age_seconds, 0, 86_400),
            ("--max-connection-idle-seconds", self.max_connection_idle_seconds, 0, 86_400),
            ("--front-ends", self.front_ends or 0, 0, MOST_FRONT_ENDS),
            ("--front-memory-mib", self.front_memory_mib, 1, 65_536),
            ("--max-shared-memory-regions", self.max_shared_memory_regions, 1, 1024),
            ("--max-shared-memory-mib", self.max_shared_memory_mib, 1, 1 << 20),
            ("--max-shared-memory-input-mib", self.max_shared_memory_input_mib, 1, 1 << 20),
            ("--max-message-mib", self.max_message_mib, 1, 2047),
            ("--max-decoding-megapixels", self.max_decoding_megapixels, 0.001, 1_000_000),
            ("--max-request-megapixels", self.max_request_megapixels, 0.001, self.max_decoding_megapixels),
            ("--batch-timeout-seconds", self.batch_timeout_seconds, 0, 86_400),
            ("--lame-duck-seconds", self.lame_duck_seconds, 0, 86_400),
            ("--drain-seconds", self.drain_seconds, 0, 86_400),
            ("--default-deadline-ms", self.default_deadline_ms, 0, _MAX_DEADLINE_MS),
            ("--warm-up-seconds", self.warm_up_seconds, 0, 3600),
            ("--deadline-margin-ms", self.deadline_margin_ms, 0, _MAX_DEADLINE_MS),
            ("--trace-ratio", self.trace_ratio, 0, 1),
        ):
            _check_range(flag, value, low, high)

        self._check_ports()

    def _check_ports(self) -> None:
        ports = {"--grpc-port": self.grpc_port, "--http-port": self.http_port, "--metrics-port": self.metrics_port}
        for (one, port), (other, another) in combinations(ports.items(), 2):
            if port and port == another:
                raise ConfigError(f"{one} and {other} are both {port}; give each a port of its own")

    def of_model(self, name: str) -> ModelConfig:
        """What holds for a model: what is set for it, and else what is set for all."""
        section = self.models.get(name, ModelSection())
        return ModelConfig(
            self.max_batch_rows if section.max_batch_rows is None else section.max_batch_rows,
            self.default_deadline_ms if section.default_deadline_ms is None else section.default_deadline_ms,
            section.precision or self.precision,
            section.devices or self.devices,
            section.priority or 0,
        )

    def check_sections(self, served: Iterable[str]) -> None:
        """Raise ConfigError where a section is for a model that is not among these names."""
        names = sorted(set(served))
        for name in self.models:
            if name not in names:
                raise ConfigError(f"models.{name} configures a model that is not served; served are {', '.join(names)}")

    @property
    def num_front_ends(self) -> int:
        """Processes that take calls beside the server's own; 0: that one does."""
        return self.front_ends or 0

    @property
    def file_arguments(self) -> tuple[str, ...]:
        """Those arguments that say something of a model's file."""
        names = ("weights", "shape", "name", "labels", "preprocess")
        return tuple(f"--{name}" for name in names if getattr(self, name))


def _check_precision(name: str, precision: str | None) -> None:
    if precision is not None and precision not in PRECISIONS:
        raise ConfigError(f"{name} {precision} is unknown; use one of {', '.join(PRECISIONS)}")


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{name} {value} is out of range; use {low} to {high}")
