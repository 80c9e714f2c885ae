"""The HTTP port of the inference protocol."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial

from dnnserve.config import ServerConfig
from dnnserve.front.rest.connection import Calls, RestConnection
from dnnserve.http.server import HttpServer, Place

__all__ = ["RestServer"]

_HELD_REQUESTS = 8  # of the largest size, in memory at the same time


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

    def serve(self, calls: Calls, max_connections: int, on_refused: Callable[[], None]) -> None:
        """Begin to take requests.

        Args:
            calls: What becomes of them.
            max_connections: Open at the same time; one more is closed again.
            on_refused: Called for each that is, in the server's thread.

        Raises:
            StartError: another server has begun to listen on the port.
        """
        connect, size = partial(RestConnection, calls=calls), self._config.max_message_mib << 20
        self.start(connect, max_connections, size, " (--max-message-mib)", _HELD_REQUESTS, on_refused)
