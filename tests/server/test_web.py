from __future__ import annotations

import http.client
import socket
import struct
import threading
import urllib.request

import pytest
from dnnserve.web import WebServer

from tests.server.fakes import PATIENCE_S, wait_until


@pytest.mark.parametrize(
    ("path", "status", "length"), [("/metrics", 200, 4), ("/readyz", 503, 10), ("/other", 404, 41)]
)
def test_head_is_get_without_the_body(path: str, status: int, length: int) -> None:
    web = WebServer("127.0.0.1", 0, lambda: b"page", lambda: False)
    web.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=PATIENCE_S)
        connection.request("HEAD", path)
        response = connection.getresponse()
        assert (response.status, int(response.headers["Content-Length"]), response.read()) == (status, length, b"")
    finally:
        web.close()


def test_a_client_that_resets_its_connection_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    asked, gone = threading.Event(), threading.Event()

    def metrics() -> bytes:
        asked.set()
        assert gone.wait(PATIENCE_S)
        return bytes(1 << 24)  # more than a connection's buffers hold

    web = WebServer("127.0.0.1", 0, metrics, lambda: True)
    web.start()
    try:
        before = threading.active_count()
        with socket.create_connection(("127.0.0.1", web.port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert asked.wait(PATIENCE_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()
        wait_until(lambda: threading.active_count() == before)
        with urllib.request.urlopen(f"http://127.0.0.1:{web.port}/healthz", timeout=PATIENCE_S) as response:
            assert response.read() == b"alive\n"
    finally:
        web.close()
    assert "Traceback" not in capfd.readouterr().err
