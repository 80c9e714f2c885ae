"""What `dnnserve` does: read the command line, run the server, end on SIGTERM or SIGINT. SIGHUP has the configuration read again.

Exit codes: 0 stopped in order; 1 stopped with requests or devices unfinished; 2 could not start.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnncore import devices
from dnncore.errors import ConfigError, DnncoreError
from dnnserve.allocator import keep_freed_memory
from dnnserve.command_line import parse_arguments, read_again
from dnnserve.config import ServerConfig
from dnnserve.early import EarlyProcesses
from dnnserve.front_ends import decided
from dnnserve.garbage import collect_seldom
from dnnserve.logs import configure_logging
from dnnserve.signals import Signals

if TYPE_CHECKING:
    from dnnserve.app import Server

__all__ = ["run"]

_log = logging.getLogger(__name__)

_SERVER_PACKAGES = frozenset(
    {
        "PIL",
        "google",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "h11",
        "prometheus_client",
        "pydantic",
        "pydantic_settings",
    }
)


def run(arguments: Sequence[str] | None, signals: Signals) -> int:
    """Run `dnnserve` and return its exit code.

    Args:
        arguments: Its command line; None: the process's own.
        signals: Not listened to yet.
    """
    try:
        asked = parse_arguments(arguments)
    except ModuleNotFoundError as error:
        return _refuse_without(error)
    config = decided(asked)
    configure_logging(config.log_format, config.log_level)
    if config.num_front_ends and asked.front_ends is None:
        _log.info("%d processes take calls; --front-ends 0 leaves it to this one", config.num_front_ends)
    # Pillow warns of damaged tags with the sender's numbers in the text, and each new text would be remembered for ever.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    keep_freed_memory()
    early = EarlyProcesses()
    try:
        early = EarlyProcesses.begin(config)
        signals.listen()  # begins a thread: processes are forked before
        from dnnserve.assembly import make_server
    except ModuleNotFoundError as error:
        early.close()
        return _refuse_without(error)
    except OSError as error:
        return _refuse(f"processes of engines and front ends cannot be begun: {error}")
    try:
        devices.limit_cpu_threads(1)
        server = make_server(config, early)
        # Who presses ^C is no load balancer.
        signals.tell(
            lambda number: server.request_stop(lame_duck=number != signal.SIGINT),
            lambda: _read_again(server, arguments),
        )
        if server.start():
            collect_seldom()
            try:
                _announce(server, config)
            except OSError as error:
                server.drain()  # devices are closed by the threads that own them, however this ends
                return _refuse(f"ready file cannot be written: {error}; choose another with --ready-file")
    except ModuleNotFoundError as error:
        early.close()
        return _refuse_without(error)
    except (DnncoreError, OSError) as error:
        early.close()
        return _refuse(str(error))
    clean = server.wait()
    if config.ready_file is not None:
        config.ready_file.unlink(missing_ok=True)
    if not clean or server.hangs:
        # The interpreter's own end would tear down a device thread in mid-call, or wait for a device that never answers.
        logging.shutdown()
        os._exit(0 if clean else 1)
    return 0


def _read_again(server: Server, arguments: Sequence[str] | None) -> None:
    """SIGHUP: apply the configuration as it is now. Certificates and tokens are read again by themselves when they change."""
    try:
        server.reconfigure(decided(read_again(arguments)))
    except (ConfigError, OSError) as error:
        _log.error("SIGHUP: the configuration cannot be used, so the old holds: %s", error)
    except Exception:  # noqa: BLE001 - whatever it was, the thread that hears signals goes on
        _log.exception("SIGHUP: reading the configuration again has failed")


def _refuse_without(error: ModuleNotFoundError) -> int:
    """Say what to install where a package of the server's is missing."""
    if (error.name or "").partition(".")[0] not in _SERVER_PACKAGES:
        raise error
    return _refuse(f"{error.name} is not installed: pip install 'dnncore[server]'")


def _refuse(message: str) -> int:
    print(f"dnnserve: error: {message}", file=sys.stderr)
    return 2


def _announce(server: Server, config: ServerConfig) -> None:
    models = [str(key) for key in server.models]
    addresses = server.addresses
    if config.ready_file is not None:
        document = {
            "grpc": addresses.grpc,
            "metrics": addresses.metrics,
            **({} if addresses.http is None else {"http": addresses.http}),
            "devices": server.device_labels,
            "models": models,
        }
        _write_atomically(config.ready_file, json.dumps(document) + "\n")
    http = "" if addresses.http is None else f", http {addresses.http}"
    _say(
        f"dnnserve ready: grpc {addresses.grpc}{http}, devices {', '.join(server.device_labels)}, models {', '.join(models)}, "
        f"metrics {addresses.metrics}"
    )


def _say(line: str) -> None:
    """Print a line; where it cannot be written (the disk is full, nobody reads any more), serve all the same."""
    try:
        print(line, flush=True)
    except OSError as error:
        _log.warning("standard output cannot be written to: %s; it was to say: %s", error, line)
        # The interpreter's end would try to write the line again, and make an exit status of its own of that.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - it is open until the process ends


def _write_atomically(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise
