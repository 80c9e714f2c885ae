from __future__ import annotations

import http.client
import socket
import ssl
import struct
import threading
import urllib.request

import pytest
from dnnserve.errors import StartError
from dnnserve.web import WebServer

from tests.server.fakes import PATIENCE_S, wait_until
from tests.server.test_rest import read_all


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
        with socket.create_connection(("127.0.0.1", web.port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert asked.wait(PATIENCE_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()
        desk = web._server._desk
        assert desk is not None
        wait_until(lambda: not desk.connections)
        with urllib.request.urlopen(f"http://127.0.0.1:{web.port}/healthz", timeout=PATIENCE_S) as response:
            assert response.read() == b"alive\n"
    finally:
        web.close()
    assert "Traceback" not in capfd.readouterr().err


def test_connections_are_bounded_in_number_and_in_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    web = WebServer("127.0.0.1", 0, lambda: b"page", lambda: True, max_connections=2)
    web.start()
    try:
        idle = [socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) for _ in range(2)]
        desk = web._server._desk
        assert desk is not None
        wait_until(lambda: len(desk.connections) == 2)
        with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as refused:
            assert refused.recv(1) == b""
        before = threading.active_count()
        asks = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        monkeypatch.setattr("dnnserve.http.connection._IDLE_S", 0.0)
        for connection in idle:  # neither has a thread of its own
            connection.sendall(asks)
            assert read_all(connection).endswith(b"alive\n")  # and then is closed, for it is idle
        assert threading.active_count() == before
        wait_until(lambda: not desk.connections)
    finally:
        web.close()


def test_requests_that_come_together_are_answered_one_after_the_other() -> None:
    web = WebServer("127.0.0.1", 0, lambda: b"page", lambda: True)
    web.start()
    try:
        with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)  # a stack has room for 200
            connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answers = read_all(connection)
        assert answers.count(b"alive\n") == 1000
        assert answers.endswith(b"ready\n")
    finally:
        web.close()


def test_a_port_that_another_server_has_begun_to_listen_on_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    first = WebServer("127.0.0.1", 0, lambda: b"page", lambda: True)
    second = WebServer("127.0.0.1", first.port, lambda: b"page", lambda: True)  # it may, as long as neither listens
    first.start()
    with pytest.raises(StartError, match=f"metrics port 127.0.0.1:{first.port} cannot be had"):
        second.start()
    second.close()
    first.close()
    assert set(threading.enumerate()) <= before


def test_a_connection_without_a_tls_context_is_closed_and_counts_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> ssl.SSLContext:
        raise RuntimeError("no context")

    web = WebServer("127.0.0.1", 0, lambda: b"page", lambda: True, fail, max_connections=1)
    web.start()
    try:
        desk = web._server._desk
        assert desk is not None
        for _ in range(2):  # the second is taken as well
            with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as connection:
                assert connection.recv(1) == b""
            wait_until(lambda: not desk.greeted)
    finally:
        web.close()
    assert caplog.text.count("RuntimeError: no context") == 2


def test_what_is_no_request_for_a_page_is_refused_in_plain_text() -> None:
    def fail() -> bytes:
        raise RuntimeError("a metric is broken")

    web = WebServer("127.0.0.1", 0, fail, lambda: True)
    web.start()
    try:
        for request, status in (
            (b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
            (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", b"413"),
            (b"GET /metrics HTTP/1.0\r\n\r\n", b"500"),
        ):
            with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as connection:
                connection.sendall(request)
                answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"Content-Type: text/plain" in answer
    finally:
        web.close()
