"""The HTTP port of the inference protocol."""

from __future__ import annotations

import resource
import ssl
from functools import partial

from dnnserve.config import ServerConfig
from dnnserve.front.rest.connection import Calls, RestConnection
from dnnserve.http.server import HttpServer, Place

__all__ = ["RestServer"]

_HELD_REQUESTS = 8  # of the largest size, in memory at the same time
_SHARE_OF_DESCRIPTORS = 8
_MOST_CONNECTIONS = 8192


class RestServer(HttpServer):
    """An HTTP port with the inference protocol. Thread-safe; `serve` is called once, `stop` at the end, also where it was not.

    Args:
        config: Address and limits; it has an `http_port`.
        tls: Its context; None: connections are plain.
        reuse_port: Whether other processes may listen on the same port.

    Raises:
        StartError: the port cannot be had.
    """

    def __init__(self, config: ServerConfig, tls: ssl.SSLContext | None = None, *, reuse_port: bool = False) -> None:
        assert config.http_port is not None
        place = Place("HTTP", config.host, config.http_port, "--http-port", reuse_port)
        super().__init__(place, None if tls is None else lambda: tls)
        self._config = config

    def serve(self, calls: Calls) -> None:
        """Begin to take requests.

        Raises:
            StartError: another server has begun to listen on the port.
        """
        config = self._config
        connections = config.max_connections or min(
            resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE_OF_DESCRIPTORS, _MOST_CONNECTIONS
        )
        size = config.max_message_mib << 20
        self.start(partial(RestConnection, calls=calls), connections, size, " (--max-message-mib)", _HELD_REQUESTS)
