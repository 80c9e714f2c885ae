"""Who is let in by an HTTP port: connections are counted from the moment at which they are taken, TLS handshakes included.

`asyncio.Server` tells of a connection when its handshake has ended, so that clients who never end theirs would count nowhere.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from dnnserve.http.connection import Connection, Desk

__all__ = ["Acceptor"]

_log = logging.getLogger(__name__)

_HANDSHAKE_S = 5.0
_EXHAUSTED_S = 1.0
_TOLD_EVERY_S = 10.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Takes connections off a listening socket. Owned by the event loop's thread; not checked.

    Args:
        listener: The socket, which does not block; closed with this.
        name: What the log calls the port: "HTTP".
        tls: Gives the context of the next connection; None: connections are plain.
        desk: What connections share.
        connect: Makes a connection.
        on_refused: Called for each connection that is closed again.
    """

    def __init__(
        self,
        listener: socket.socket,
        name: str,
        tls: Callable[[], ssl.SSLContext] | None,
        desk: Desk,
        connect: Callable[[Desk], Connection],
        on_refused: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._name = name
        self._tls = tls
        self._desk = desk
        self._connect = connect
        self._on_refused = on_refused
        self._untold = 0  # refused since the last line of the log
        self._silent_until = 0.0
        self._greetings: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin, or go on, to take connections; of a socket that is closed there are none."""
        if self._listener.fileno() >= 0:
            self._desk.loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Take no more, and close the socket. A second call does nothing."""
        if self._listener.fileno() >= 0:
            self._desk.loop.remove_reader(self._listener)
            self._listener.close()

    async def end(self) -> None:
        """Give up those who are not in yet."""
        for greeting in self._greetings:
            greeting.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)

    def _accept(self) -> None:
        desk = self._desk
        try:
            taken, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the port is readable still: look away for a while
                _log.error("no connection can be taken on the %s port for %g s: %s", self._name, _EXHAUSTED_S, error)
                desk.loop.remove_reader(self._listener)
                desk.loop.call_later(_EXHAUSTED_S, self.open)
            return  # else it has gone again
        if len(desk.connections) + len(desk.greeted) >= desk.max_connections:
            self._refused()  # counted before its client can know
            taken.close()
            return
        taken.setblocking(False)
        connection = self._connect(desk)
        desk.greeted.add(connection)
        greeting = desk.loop.create_task(self._greet(taken, connection))
        self._greetings.add(greeting)
        greeting.add_done_callback(self._greetings.discard)

    def _refused(self) -> None:
        """Count a connection that was closed again; the log has a line for many."""
        self._on_refused()
        self._untold += 1
        now = self._desk.loop.time()
        if now >= self._silent_until:
            bound = self._desk.max_connections
            text = "connections of the %s port that were closed again: %d, because %d are open, as many as may"
            _log.warning(text, self._name, self._untold, bound)
            self._untold, self._silent_until = 0, now + _TOLD_EVERY_S

    async def _greet(self, taken: socket.socket, connection: Connection) -> None:
        """Bring a connection to where it is made, or closed."""
        desk = self._desk
        patience_s = None if self._tls is None else _HANDSHAKE_S
        times = {"ssl_handshake_timeout": patience_s, "ssl_shutdown_timeout": patience_s}
        try:
            tls = None if self._tls is None else self._tls()
            await desk.loop.connect_accepted_socket(lambda: connection, taken, ssl=tls, **times)
        except OSError as error:  # TLS's are such, and that it took too long
            _log.debug("a connection of the %s port came to nothing: %s", self._name, error)
        except Exception:  # noqa: BLE001 - whatever becomes of one connection, the port goes on
            _log.exception("a connection of the %s port could not be taken in", self._name)
            taken.close()
        finally:
            desk.greeted.discard(connection)
