"""A small HTTP server for operators: /metrics, /healthz (the process answers) and /readyz (requests can be answered)."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from http import HTTPStatus

import h11

from dnnserve.http.connection import Connection, Desk, Refusal, Reply
from dnnserve.http.server import HttpServer, Place
from dnnserve.metrics import CONTENT_TYPE

__all__ = ["WebServer"]

_log = logging.getLogger(__name__)


class WebServer:
    """Answers GET and HEAD on its own port. Thread-safe.

    Pages are made by its one thread, in the order in which they are asked for.

    Args:
        host: Address to listen on.
        port: 0: any free one.
        metrics: Makes the page of /metrics.
        ready: Whether /readyz says 200 or 503.
        tls: Gives the context of new connections; None: they are plain. Where it asks clients for certificates, /metrics is only
            for those that show one; health and readiness are for all, as Kubernetes' probes have none.
        max_connections: Open at the same time; one more is closed again.
        on_refused: Called for each that is, in the server's thread.

    Raises:
        StartError: the port cannot be had.
    """

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Callable[[], bytes],
        ready: Callable[[], bool],
        tls: Callable[[], ssl.SSLContext] | None = None,
        max_connections: int = 256,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._max_connections = max_connections
        self._on_refused = on_refused
        self._server = HttpServer(Place("metrics", host, port, "--metrics-port"), tls)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    def start(self) -> None:
        """Begin to answer."""
        self._server.start(self._connect, self._max_connections, 0, "", 0, self._on_refused)

    def close(self) -> None:
        """Stop answering and free the port; a second call does nothing."""
        self._server.stop(0.0)

    def page(self, path: str, *, certified: bool) -> Reply:
        """What is to be read at a path.

        Args:
            path: Without what stands behind a question mark.
            certified: Whether the client has shown a certificate, where it is asked for one.
        """
        match path:
            case "/metrics" if not certified:
                return _text(HTTPStatus.FORBIDDEN, "metrics are for clients with a certificate")
            case "/metrics":
                return Reply(HTTPStatus.OK, CONTENT_TYPE, self._metrics())
            case "/healthz":
                return _text(HTTPStatus.OK, "alive")
            case "/readyz" if self._ready():
                return _text(HTTPStatus.OK, "ready")
            case "/readyz":
                return _text(HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
            case _:
                return _text(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")

    def _connect(self, desk: Desk) -> Connection:
        return _Reader(desk, self)


class _Reader(Connection):
    """A client's connection. Owned by the event loop's thread; not checked."""

    def __init__(self, desk: Desk, pages: WebServer) -> None:
        super().__init__(desk)
        self._pages = pages

    def look_at(self, head: h11.Request) -> None:
        """Pages are read, and nothing is written."""
        if head.method not in (b"GET", b"HEAD"):
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are answered", (("Allow", "GET, HEAD"),))

    def hand_over(self, head: h11.Request, _body: bytes) -> None:
        """Answer with the page."""
        path = head.target.decode("latin-1").partition("?")[0]
        try:
            reply = self._pages.page(path, certified=not self.lacks_certificate)
        except Exception:  # noqa: BLE001 - whatever a page does, the next one gets its chance
            _log.exception("the page %s could not be made", path)
            reply = _text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the server's log has the cause")
        self.answer(reply)

    def refused(self, refusal: Refusal) -> Reply:
        """Its text."""
        return _text(refusal.status, str(refusal))


def _text(status: int, text: str) -> Reply:
    return Reply(status, "text/plain", f"{text}\n".encode())
