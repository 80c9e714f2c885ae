"""How many connections each port takes: shares of the files and connections that a process may have open (RLIMIT_NOFILE).

A process without a free descriptor takes no connection on any port, and starts no engine, front end or thread in place of one that
is lost. So the bounds of all its ports are made here, together, and leave what everything else needs.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass

from dnnserve.config import ServerConfig
from dnnserve.errors import StartError

__all__ = ["Connections", "RefusalsObserver", "log_connections", "of_front_end", "of_server", "share_out"]

_log = logging.getLogger(__name__)

_OWN = 32
"""Listening sockets, event loops, standard streams, and files that are being read; 18 are open when it is ready."""

_PER_PROCESS = 8
"""Link and shared memory of an engine or a front end, and what is on its way to it; a second one's while it is started anew."""

_PER_MODEL = 1
"""The file with a model's weights that engines map."""

_PER_MODEL_AND_ENGINE = 6
"""Where calls come to this process: arenas of three batches on their way to an engine, each open as a file and as a mapping."""

_LEAST_TO_COME = 16
"""Models that room is kept for where they come and go; as many as there are at the start, where that is more. An assumption."""

_PER_GPU = 64
"""What a driver opens for a device that runs in this process. An assumption: most GPUs run in processes of their own."""

_LEAST = 8
"""Connections, without which there is no use in beginning."""

_SHARE = 8
_MOST_HTTP = 8192
_MOST_PAGES = 256
"""Far more than monitors and probes open, each of which is closed when it has been idle for a minute."""

_MANY_DESCRIPTORS = 1 << 20

RefusalsObserver = Callable[[str, int], None]
"""Told of connections that were closed again because there were too many: the port's name, and how many."""


@dataclass(frozen=True, slots=True)
class Connections:
    """Open at the same time in one process, by port; one more is closed again. Immutable.

    Args:
        grpc: Of the inference protocol; 0: it is not this process that takes calls.
        http: So.
        metrics: Of the operators' pages; 0: it is not this process that has them.
        descriptors: That the process may have open.
        needed: Descriptors with which there would be as many connections as the configuration asks for; None: there are.
    """

    grpc: int
    http: int
    metrics: int
    descriptors: int
    needed: int | None = None


def of_server(config: ServerConfig, engines: int, gpus: int, models: int) -> Connections:
    """The bounds of the server's own process.

    Args:
        config: Its.
        engines: Processes of devices.
        gpus: That run in this process.
        models: That it begins with.

    Raises:
        StartError: there are too few descriptors.
    """
    kept = _OWN + _PER_PROCESS * (engines + config.num_front_ends) + _PER_GPU * gpus
    if engines:
        if config.repository_mode != "none":
            models += max(models, _LEAST_TO_COME)
        kept += models * (_PER_MODEL + (0 if config.num_front_ends else _PER_MODEL_AND_ENGINE * engines))
    return share_out(config, _descriptors(), kept, calls=not config.num_front_ends, pages=True)


def of_front_end(config: ServerConfig) -> Connections:
    """The bounds of a front end's process.

    Raises:
        StartError: there are too few descriptors.
    """
    return share_out(config, _descriptors(), _OWN + _PER_PROCESS, calls=True, pages=False)


def share_out(config: ServerConfig, descriptors: int, kept: int, *, calls: bool, pages: bool) -> Connections:
    """Shares of the descriptors of a process.

    Args:
        config: Says which ports there are, and how many connections are wanted.
        descriptors: That the process may have open.
        kept: Of these, for what is no connection and no region of shared memory.
        calls: Whether it takes calls.
        pages: Whether it has the operators' pages.

    Raises:
        StartError: there are too few.
    """
    kept += config.max_shared_memory_regions if config.shared_memory else 0
    left = descriptors - kept
    if left < _LEAST:
        raise StartError(
            f"{descriptors} files and connections may be open, and {kept} are kept for what is no connection: raise the limit to "
            f"{kept + _LEAST} or more (ulimit -n, LimitNOFILE=)"
        )
    if not calls:
        return Connections(0, 0, min(left, _MOST_PAGES), descriptors)
    metrics = min(left // _SHARE, _MOST_PAGES) if pages else 0
    with_http = config.http_port is not None
    wanted = config.max_connections
    if not wanted:
        http = min(left // _SHARE, _MOST_HTTP) if with_http else 0
        return Connections(left - metrics - http, http, metrics, descriptors)
    each, needed = min(wanted, (left - metrics) // (1 + with_http)), None
    if each < wanted:
        asked = wanted * (1 + with_http)
        needed = kept + asked + (min(-(-asked // (_SHARE - 1)), _MOST_PAGES) if pages else 0)
    return Connections(each, each if with_http else 0, metrics, descriptors, needed)


def log_connections(connections: Connections, where: str) -> None:
    """Say once what the bounds are, and how there would be as many as were asked for.

    Args:
        connections: The bounds.
        where: In which process they hold.
    """
    bounds = {"gRPC": connections.grpc, "HTTP": connections.http, "metrics": connections.metrics}
    text = ", ".join(f"{name} {number}" for name, number in bounds.items() if number)
    if connections.needed is not None:
        _log.warning(
            "fewer connections than --max-connections asks for may be open in %s: %s; it may have %d files open and needs %d "
            "(ulimit -n, LimitNOFILE=)",
            *(where, text, connections.descriptors, connections.needed),
        )
    else:
        _log.info("connections that may be open in %s: %s", where, text)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, _MANY_DESCRIPTORS)
