"""An HTTP port: one thread with an event loop, whatever the number of connections.

HTTP itself is h11's, which needs nothing but Python and does no input and output, so that every limit is ours: how long a request
may take to come, how much of it is kept, and how many do. `http.server` takes a thread for each connection and reads no chunked
bodies; uvicorn and aiohttp bound neither the time that a request takes to come nor the memory of all of them, and bring what a
framework has.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dnnserve.errors import StartError
from dnnserve.http.acceptor import Acceptor
from dnnserve.http.connection import Connection, Desk

__all__ = ["HttpServer", "Place"]

_BACKLOG = 1024
_SWEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens. Immutable.

    Args:
        name: What messages call the port: "HTTP".
        host: Address.
        port: 0: any free one.
        flag: By which another can be chosen.
        reuse_port: Whether other processes may listen on the same port.
    """

    name: str
    host: str
    port: int
    flag: str
    reuse_port: bool = False


class HttpServer:
    """An HTTP port. Thread-safe; `start` is called once, `stop` at the end, also where it was never started.

    Args:
        place: Where it listens.
        tls: Gives the context of the next connection; None: connections are plain.

    Raises:
        StartError: the port cannot be had.
    """

    def __init__(self, place: Place, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._name = place.name
        self._tls = tls
        self._socket = _bind(place)
        self.port = int(self._socket.getsockname()[1])
        self.address = f"[{place.host}]:{self.port}" if ":" in place.host else f"{place.host}:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"dnnserve-{place.name.lower()}", daemon=True
        )
        self._desk: Desk | None = None
        self._acceptor: Acceptor | None = None

    def start(
        self,
        connect: Callable[[Desk], Connection],
        max_connections: int,
        max_body_bytes: int,
        bound_by: str,
        max_bodies: int,
        on_refused: Callable[[], None],
    ) -> None:
        """Begin to take requests.

        Args:
            connect: Makes a connection, which knows what becomes of its requests.
            max_connections: Open at the same time.
            max_body_bytes: Of a request.
            bound_by: As `Desk` has it.
            max_bodies: Of the largest size, in memory at the same time.
            on_refused: Called for each connection that is closed again, in the event loop's thread.

        Raises:
            StartError: another server has begun to listen on the port.
        """
        held_bytes = max_bodies * max_body_bytes
        self._desk = desk = Desk(self._loop, max_connections, max_body_bytes, bound_by, held_bytes)
        self._socket.setblocking(False)
        try:
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise StartError(f"{self._name} port {self.address} cannot be had: {error.strerror or error}") from error
        self._acceptor = Acceptor(self._socket, self._name, self._tls, desk, connect, on_refused)
        self._thread.start()  # last: a server that could not listen has no thread to end
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


def _bind(place: Place) -> socket.socket:
    """A socket that has the port and does not listen yet.

    Raises:
        StartError: the port cannot be had.
    """
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    # Named, because asyncio sends at once (TCP_NODELAY) only what it knows to be TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections do not block a restart
        if place.reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((place.host, place.port))
    except OSError as error:
        bound.close()
        not_ours = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        raise StartError(
            f"{place.name} port {place.host}:{place.port} cannot be had: {error.strerror or error}; choose another with "
            f"{'--host' if not_ours else place.flag}"
        ) from error
    return bound
