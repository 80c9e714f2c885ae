"""A small HTTP server for operators: /metrics, /healthz (the process answers) and /readyz (requests can be answered)."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dnnserve.errors import StartError
from dnnserve.metrics import CONTENT_TYPE

__all__ = ["WebServer"]

_log = logging.getLogger(__name__)


class WebServer:
    """Answers GET and HEAD on its own port. Thread-safe.

    Args:
        host: Address to listen on.
        port: 0: any free one.
        metrics: Makes the page of /metrics.
        ready: Whether /readyz says 200 or 503.
        tls: Gives the context of new connections; None: they are plain. Where it asks clients for certificates, /metrics is only
            for those that show one; health and readiness are for all, as Kubernetes' probes have none.

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
    ) -> None:
        class Handler(_Handler):
            def setup(self) -> None:
                if tls is not None:
                    self.request.settimeout(self.timeout)
                    self.request = tls().wrap_socket(self.request, server_side=True)  # in the connection's own thread
                super().setup()

            def page(self, path: str) -> tuple[HTTPStatus, str, bytes]:
                match path:
                    case "/metrics" if self.lacks_certificate():
                        return HTTPStatus.FORBIDDEN, "text/plain", b"metrics are for clients with a certificate\n"
                    case "/metrics":
                        return HTTPStatus.OK, CONTENT_TYPE, metrics()
                    case "/healthz":
                        return HTTPStatus.OK, "text/plain", b"alive\n"
                    case "/readyz" if ready():
                        return HTTPStatus.OK, "text/plain", b"ready\n"
                    case "/readyz":
                        return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"not ready\n"
                    case _:
                        return HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics, /healthz and /readyz\n"

        server = _HttpServer6 if ":" in host else _HttpServer
        try:
            self._server = server((host, port), Handler)
        except OSError as error:
            raise StartError(
                f"metrics port {host}:{port} cannot be had: {error.strerror or error}; choose another with --metrics-port"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="dnnserve-web", daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port; a second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True  # past connections in TIME_WAIT do not block a restart; a listener still does
    request_queue_size = 128  # connections that wait to be accepted: probes and scrapers that come at the same time

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's arguments
        """Log what ended a connection; a client that went away is no error of ours, and its traceback no line of our log."""
        if isinstance(sys.exception(), OSError):
            _log.debug("%s: %s", client_address[0], sys.exception())
        else:
            _log.exception("a request of %s to the metrics port failed", client_address[0])


class _HttpServer6(_HttpServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    """One connection. Owned by one thread; not checked: the HTTP server's."""

    timeout = 10.0  # a client that sends nothing does not keep a thread
    server_version = "dnnserve"
    sys_version = ""

    def page(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        raise NotImplementedError

    def lacks_certificate(self) -> bool:
        """Whether the client was asked for a certificate and has shown none."""
        connection = self.connection
        if not isinstance(connection, ssl.SSLSocket):
            return False
        return connection.context.verify_mode != ssl.CERT_NONE and not connection.getpeercert()

    def do_GET(self) -> None:
        """The page."""
        self.wfile.write(self._head())

    def do_HEAD(self) -> None:
        """The head of the page alone: monitors ask so whether it is there."""
        self._head()

    def _head(self) -> bytes:
        """Send what stands before the body, which is returned."""
        status, content_type, body = self.page(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        _log.debug("%s: " + format, self.client_address[0], *args)
