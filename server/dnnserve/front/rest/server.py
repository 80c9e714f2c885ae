"""The HTTP port: one thread with an event loop, whatever the number of connections.

HTTP itself is h11's, which needs nothing but Python and does no input and output, so that every limit is ours: how long a request
may take to come, how much of it is kept, and how many do. `http.server`, which the metrics port uses, takes a thread for each
connection and reads no chunked bodies; uvicorn and aiohttp bound neither the time that a request takes to come nor the memory of
all of them, and bring what a framework has.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable

from dnnserve.config import ServerConfig
from dnnserve.errors import StartError
from dnnserve.front.authorization import Objection
from dnnserve.front.call import Call, Methods
from dnnserve.front.gate import Gate
from dnnserve.front.rest.acceptor import Acceptor
from dnnserve.front.rest.connection import Desk

__all__ = ["HttpServer"]

_log = logging.getLogger(__name__)

_BACKLOG = 1024
_SWEEP_S = 0.5
_HELD_REQUESTS = 8  # of the largest size, in memory at the same time
_SHARE_OF_DESCRIPTORS = 8
_MOST_CONNECTIONS = 8192


class HttpServer:
    """An HTTP port with the inference protocol. Thread-safe; `start` is called once, `stop` at the end, also where it was never
    started.

    Args:
        config: Address and limits; it has an `http_port`.
        gate: Counts the calls whose request has come.
        clock: Monotonic nanoseconds.
        tls: Its context; None: connections are plain.
        reuse_port: Whether other processes may listen on the same port.

    Raises:
        StartError: the port cannot be had.
    """

    def __init__(
        self,
        config: ServerConfig,
        gate: Gate,
        clock: Callable[[], int],
        tls: ssl.SSLContext | None = None,
        *,
        reuse_port: bool = False,
    ) -> None:
        assert config.http_port is not None
        self._config = config
        self._gate = gate
        self._clock = clock
        self._tls = tls
        self._socket = bind(config.host, config.http_port, reuse_port=reuse_port)
        port = self._socket.getsockname()[1]
        self.address = f"[{config.host}]:{port}" if ":" in config.host else f"{config.host}:{port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dnnserve-http", daemon=True)
        self._desk: Desk | None = None
        self._acceptor: Acceptor | None = None

    def start(self, methods: Methods, refuse: Callable[[Call, Exception], None], objection: Objection) -> None:
        """Begin to take requests.

        Args:
            methods: Handlers by path, gRPC's.
            refuse: Ends a call whose request was not looked at.
            objection: What is said against a request before its body is read.

        Raises:
            StartError: another server has begun to listen on the port.
        """
        config = self._config
        connections = config.max_connections or min(
            resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE_OF_DESCRIPTORS, _MOST_CONNECTIONS
        )
        size = config.max_message_mib << 20
        self._desk = desk = Desk(
            *(self._loop, methods, refuse, objection, self._gate, self._clock),
            *(connections, size, _HELD_REQUESTS * size),
        )
        self._thread.start()
        self._socket.setblocking(False)
        try:
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise StartError(f"HTTP port {self.address} cannot be had: {error.strerror or error}") from error
        self._acceptor = Acceptor(self._socket, self._tls, desk)
        self._loop.call_soon_threadsafe(self._acceptor.open)
        self._loop.call_soon_threadsafe(self._sweep, desk)

    def ask_to_leave(self) -> None:
        """From now on an answer is the last on its connection."""
        if self._desk is not None:
            self._desk.leaving = True

    def refuse_connections(self) -> None:
        """Close the port, and connections without a request."""
        self.ask_to_leave()
        if self._acceptor is not None:
            self._loop.call_soon_threadsafe(self._close_port)

    def stop(self, grace_s: float) -> None:
        """End what is still open after so long, and give the port back."""
        if self._thread.is_alive():
            self.refuse_connections()
            asyncio.run_coroutine_threadsafe(self._end(grace_s), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._socket.close()

    def _close_port(self) -> None:
        assert self._acceptor is not None
        assert self._desk is not None
        self._acceptor.close()
        for connection in list(self._desk.connections):
            connection.leave()

    async def _end(self, grace_s: float) -> None:
        assert self._desk is not None
        assert self._acceptor is not None
        await self._acceptor.end()
        give_up = time.monotonic() + grace_s
        while self._desk.connections and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
        for connection in list(self._desk.connections):
            connection.abort()
        await asyncio.sleep(0)  # what was aborted is told so

    def _sweep(self, desk: Desk) -> None:
        now = time.monotonic()
        for connection in list(desk.connections):
            connection.expire(now)
        self._loop.call_later(_SWEEP_S, self._sweep, desk)


def bind(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """A socket that has the port and does not listen yet.

    Raises:
        StartError: the port cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio sends at once (TCP_NODELAY) only what it knows to be TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections do not block a restart
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise StartError(
            f"HTTP port {host}:{port} cannot be had: {error.strerror or error}; choose another with --http-port"
        ) from error
    return bound
