"""The server's command line. Imports neither gRPC nor a backend, so `dnnserve --help` works everywhere.

The environment and a file say the same: `settings` puts them together.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from dnncore.errors import ConfigError
from dnncore.importers.model_file import add_arguments, add_package_arguments
from dnnserve.config import ENGINES, FRONT_ENDS, LOG_LEVELS, PRECISIONS, REPOSITORY_MODES, ServerConfig

__all__ = ["keys_by_field", "parse_arguments", "read_again"]


def parse_arguments(arguments: Sequence[str] | None = None) -> ServerConfig:
    """Read the command line, and what it leaves open from the environment and a file.

    Explains itself and exits with code 2 when that cannot be used.

    Raises:
        ModuleNotFoundError: pydantic-settings, which reads the latter two, is not installed.
    """
    parser = _parser()
    try:
        return _read(parser, arguments)
    except (ConfigError, OSError) as error:
        parser.error(str(error))


def read_again(arguments: Sequence[str] | None = None) -> ServerConfig:
    """Read what `parse_arguments` has read, as it is now.

    Raises:
        ConfigError: it cannot be used.
        OSError: the file cannot be read.
    """
    return _read(_parser(), arguments)


def keys_by_field() -> Mapping[str, str]:
    """What each field of `ServerConfig` is called in a file."""
    from dnnserve.settings import declared_settings  # here, as below

    return {setting.field: setting.key for setting in declared_settings(_parser(), ServerConfig)}


def _read(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> ServerConfig:
    # An attribute that is there already keeps argparse from setting a default: what is left None was not given.
    given = parser.parse_args(arguments, argparse.Namespace(**{action.dest: None for action in parser._actions}))
    flags = {name: value for name, value in vars(given).items() if value is not None}
    from dnnserve.settings import (
        read_settings,  # here, for `--help` to need neither pydantic nor the time that it takes
    )

    settings = read_settings(parser, ServerConfig, flags, flags.get("config"), (("model", "model_repository"),))
    if "print_config" in flags:
        print(settings.to_toml(), end="")
    try:
        config = ServerConfig(**settings.arguments())
    except ConfigError as error:
        origins = settings.origins_in(str(error))
        raise ConfigError(f"{error} ({origins})" if origins else str(error)) from error
    if "print_config" in flags:
        parser.exit()
    return config


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dnnserve",
        description="Serve model packages, ONNX files and Caffe's nets over gRPC (Open Inference Protocol and "
        "dnnapi.v1.ClassifierService) and HTTP (the former).",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        argument_default=argparse.SUPPRESS,
        epilog="What a flag says can be said in the environment (DNNSERVE_MAX_BATCH=8) and in a file (max_batch = 8) as well; a "
        "flag comes before the environment, and that before the file. For single models a file has sections: [models.NAME].",
    )
    places = parser.add_argument_group("configuration")
    places.add_argument("--config", type=Path, metavar="FILE", help="read settings from a TOML file")
    places.add_argument(
        "--print-config", action="store_true", help="print all settings as such a file, with their origins, and exit"
    )
    models = parser.add_argument_group("models (give exactly one of the first two)")
    models.add_argument("--model-repository", type=Path, metavar="DIR", help="folder of NAME/VERSION/ model packages")
    models.add_argument(
        "--model", type=Path, metavar="PATH", help="one model package, .onnx file or .prototxt, served as version 1"
    )
    models.add_argument(
        "--repository-mode",
        choices=REPOSITORY_MODES,
        default="none",
        help="none: what is loaded at the start is served; poll: what changes in the repository is loaded and unloaded; explicit: "
        "clients load and unload (RepositoryModelLoad)",
    )
    models.add_argument(
        "--repository-poll-seconds", type=float, default=15.0, metavar="S", help="poll: from one look to the next"
    )
    models.add_argument(
        "--load-model",
        dest="load_models",
        action="append",
        type=_model_name,
        metavar="NAME",
        help="explicit: load this one at the start, * for all; may be given several times",
    )
    models.add_argument(
        "--all-versions", action=argparse.BooleanOptionalAction, help="load every version, not the latest alone"
    )
    models.add_argument(
        "--skip-bad-models",
        action=argparse.BooleanOptionalAction,
        help="log packages that cannot be loaded, serve the rest",
    )
    file = parser.add_argument_group("what an .onnx file or a .prototxt does not say")
    add_arguments(file)
    add_package_arguments(file)
    net = parser.add_argument_group("network")
    net.add_argument("--host", default="127.0.0.1", help="address to listen on")
    net.add_argument("--grpc-port", type=int, default=8001, metavar="PORT", help="0: any free one")
    net.add_argument(
        "--http-port",
        type=int,
        metavar="PORT",
        help="serve the Open Inference Protocol over HTTP too; 8000 is usual, 0: any free one",
    )
    net.add_argument(
        "--metrics-port", type=int, default=8002, metavar="PORT", help="of /metrics, /healthz, /readyz; 0: any free one"
    )
    net.add_argument(
        "--front-ends",
        type=int,
        metavar="N",
        help="processes that take calls, all on one port; 0: the server's own process does; without it eight for each GPU, "
        "but no more than one for each four cores",
    )
    net.add_argument(
        "--front-memory-mib",
        type=int,
        default=256,
        metavar="MIB",
        help="memory that each such process shares with the server, for requests that wait or run; all of it is taken where GPUs "
        "read large rows there",
    )
    net.add_argument(
        "--front-end",
        choices=FRONT_ENDS,
        default="auto",
        help="fast: straight from gRPC's core; public: through grpcio's public API; auto: fast where it runs",
    )
    net.add_argument(
        "--grpc-threads", type=int, default=64, metavar="N", help="public front end: requests that are handled at once"
    )
    net.add_argument(
        "--max-calls", type=int, default=16_384, metavar="N", help="fast front end: calls that may be open at once"
    )
    net.add_argument(
        "--max-connections",
        type=int,
        default=0,
        metavar="N",
        help="open at once, to each port of the protocol; 0: by the limit of open files",
    )
    net.add_argument(
        "--max-connection-age-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="ask a client to connect anew after so long; 0: never",
    )
    net.add_argument(
        "--max-connection-idle-seconds",
        type=float,
        default=3600.0,
        metavar="S",
        help="close a connection without calls after so long; 0: never",
    )
    net.add_argument("--max-message-mib", type=int, default=64, metavar="MIB", help="largest message")
    shared = parser.add_argument_group("shared memory of clients on this machine")
    shared.add_argument(
        "--shared-memory",
        action=argparse.BooleanOptionalAction,
        help="let clients register POSIX shared memory (Triton's system shared memory), for inputs and outputs that lie there",
    )
    shared.add_argument(
        "--max-shared-memory-regions", type=int, default=64, metavar="N", help="registered at the same time"
    )
    shared.add_argument(
        "--max-shared-memory-mib", type=int, default=4096, metavar="MIB", help="of all regions together"
    )
    shared.add_argument(
        "--max-shared-memory-input-mib",
        type=int,
        default=1024,
        metavar="MIB",
        help="of the inputs there whose requests wait or run, in each process that takes calls",
    )
    images = parser.add_argument_group("images")
    images.add_argument(
        "--max-request-megapixels", type=float, default=400.0, metavar="MP", help="of all images of a request"
    )
    images.add_argument(
        "--max-decoding-megapixels",
        type=float,
        default=800.0,
        metavar="MP",
        help="of all requests whose images are being decoded",
    )
    security = parser.add_argument_group("security (files are read again when they change)")
    security.add_argument("--tls-cert", type=Path, metavar="PEM", help="use TLS, with this certificate chain")
    security.add_argument("--tls-key", type=Path, metavar="PEM", help="its private key")
    security.add_argument(
        "--tls-client-ca", type=Path, metavar="PEM", help="mutual TLS: clients need certificates of these authorities"
    )
    security.add_argument(
        "--metrics-tls",
        action=argparse.BooleanOptionalAction,
        help="TLS on the metrics port too; with --tls-client-ca, /metrics needs a client's certificate",
    )
    security.add_argument(
        "--token-file", type=Path, metavar="FILE", help='bearer tokens: lines such as "infer,metadata TOKEN"'
    )
    work = parser.add_argument_group("devices and batching")
    work.add_argument(
        "--devices",
        metavar="LIST",
        help='"cuda:0,cuda:1" or "cpu"; without it every GPU, or the CPU where there is none',
    )
    work.add_argument(
        "--engines",
        choices=ENGINES,
        default="auto",
        help="where a device runs: in a process of its own, which is started again when it is lost, or in a thread of the "
        "server; auto: processes for GPUs",
    )
    work.add_argument(
        "--precision",
        choices=tuple(PRECISIONS),
        help="of what is computed inside a model; its inputs, outputs and sums stay in fp32; int8 is for packages that "
        "dnncore calibrate has seen; without it as each package says, and fp32 where it says nothing",
    )
    work.add_argument(
        "--device-memory-fraction",
        type=float,
        default=0.95,
        metavar="F",
        help="of a device's memory, what models may take together with whoever else uses it; what does not fit is refused",
    )
    work.add_argument(
        "--batch-invariant",
        action=argparse.BooleanOptionalAction,
        help="an image's answer has the same bits in any batch: each is computed alone, which takes longer",
    )
    work.add_argument(
        "--max-batch",
        dest="max_batch_rows",
        type=int,
        default=32,
        metavar="ROWS",
        help="rows of a batch and of a request",
    )
    work.add_argument(
        "--max-queue",
        dest="max_queue_requests",
        type=int,
        default=1024,
        metavar="REQUESTS",
        help="requests that may wait for a model",
    )
    work.add_argument(
        "--max-queue-delay-us", type=int, default=0, metavar="US", help="wait for company while a device is idle"
    )
    work.add_argument(
        "--hold-until-requests",
        type=int,
        default=0,
        metavar="N",
        help="for tests: the first batch waits for N requests",
    )
    work.add_argument(
        "--default-deadline-ms", type=float, default=0.0, metavar="MS", help="for requests without a deadline; 0: none"
    )
    work.add_argument(
        "--warm-up-seconds", type=float, default=1.0, metavar="S", help="for timing batches before a device serves"
    )
    work.add_argument(
        "--save-costs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep what batches take from one start to the next, in the folder of compiled kernels (DNNCORE_CACHE_DIR, else "
        "~/.cache/dnncore)",
    )
    work.add_argument(
        "--deadline-margin-ms", type=float, default=1.0, metavar="MS", help="kept of each deadline for the way back"
    )
    life = parser.add_argument_group("operation")
    life.add_argument(
        "--batch-timeout-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="a GPU whose batch runs for longer is taken out of service, and other devices run the batch; 0: never",
    )
    life.add_argument(
        "--lame-duck-seconds",
        type=float,
        default=5.0,
        metavar="S",
        help="after SIGTERM, go on serving for so long while health and readiness say no, so that clients go elsewhere",
    )
    life.add_argument(
        "--drain-seconds", type=float, default=30.0, metavar="S", help="time for requests to finish after that"
    )
    life.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="lines from this level up")
    life.add_argument("--log-format", choices=("text", "json"), default="text", help="of the lines on stderr")
    life.add_argument(
        "--access-log",
        action=argparse.BooleanOptionalAction,
        help="a line for each call: client, model, id, status, time",
    )
    life.add_argument(
        "--trace-endpoint",
        metavar="URL",
        help="send OpenTelemetry spans there, by OTLP over HTTP: http://127.0.0.1:4318/v1/traces",
    )
    life.add_argument(
        "--trace-ratio",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="of the calls without a traceparent that are traced, 0 to 1; the others follow their client's decision",
    )
    life.add_argument(
        "--ready-file", type=Path, metavar="PATH", help="write addresses, devices and models there as JSON when ready"
    )
    return parser


def _model_name(text: str) -> str:
    """A name as it is; as a type of its own it is written without brackets and quotes in the environment, too."""
    return text
