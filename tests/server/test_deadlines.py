"""Deadlines that come with calls: kept when the wall clock is set, and refused when they have passed on arrival."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from dnnserve.app import Server

from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.serving import front_end, infer_request, scores, serving, status
from tests.server.test_connections import HELLO
from tests.server.test_hostile_frames import DATA, END_HEADERS, END_STREAM, HEADERS, INFER, frame, headers
from tests.server.test_streams import Stream

CODE = grpc.StatusCode

__all__ = ["front_end"]
pytestmark = pytest.mark.usefixtures("front_end")


@pytest.fixture
def lab() -> Lab:
    return Lab()


class WallClock:
    """The wall clock of this process, which can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + self._ahead_s)

    @contextmanager
    def set_by(self, seconds: float) -> Iterator[None]:
        self._ahead_s = seconds
        try:
            yield
        finally:
            self._ahead_s = 0.0


def waiting(server: Server) -> int:
    return sum(server.scheduler.queue_depths().values())


@pytest.mark.parametrize("hours", [1, -1])
def test_deadlines_that_came_with_calls_are_kept_when_the_wall_clock_is_set(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    clock = WallClock(monkeypatch)
    with serving(lab) as (server, client):
        stream = Stream(client, timeout=2 * PATIENCE_S)
        stream.send(1.0)
        assert scores(stream.next().infer_response) == [[1.0, 2.0, 3.0]]
        lab.pause("cpu")
        running = client.send(2.0)
        lab.wait_running("cpu")
        patient = client.send(3.0)
        wait_until(lambda: waiting(server) == 1)
        hasty = client.send(4.0, timeout=0.5)
        wait_until(lambda: waiting(server) == 2 or hasty.done())
        with clock.set_by(3600.0 * hours):
            wait_until(lambda: hasty.done() and waiting(server) == 1)
            assert hasty.code() is CODE.DEADLINE_EXCEEDED
            stream.send(5.0)
            wait_until(lambda: waiting(server) == 2)
            now_ns = time.monotonic_ns()
            for request in server.scheduler._ledger.requests:
                assert request.deadline_ns is not None
                assert 0 < request.deadline_ns - now_ns < 2 * (PATIENCE_S + 1) * 1e9
            lab.resume()
            assert scores(running.result(PATIENCE_S)) == [[2.0, 4.0, 6.0]]
            assert scores(patient.result(PATIENCE_S)) == [[3.0, 6.0, 9.0]]
            assert scores(stream.next().infer_response) == [[5.0, 10.0, 15.0]]
        stream.call.cancel()
        assert status(client.send())[0] is CODE.OK


@pytest.mark.parametrize("timeout", ["0m", "1n"])  # which gRPC's own clients do not send
def test_a_request_whose_deadline_has_passed_on_arrival_is_told_so_and_not_computed(lab: Lab, timeout: str) -> None:
    message = infer_request(5.0).SerializeToString()
    call = frame(HEADERS, END_HEADERS, 1, headers(INFER, grpc_timeout=timeout))
    call += frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
    with serving(lab) as (server, client):
        host, port = server.addresses.grpc.split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as late:
            late.sendall(HELLO + call)
            heard = b""
            while b"grpc-status" not in heard or b"grpc-message" not in heard:
                heard += late.recv(1 << 16)
            assert b"grpc-status\x01" + str(CODE.DEADLINE_EXCEEDED.value[0]).encode() in heard
        assert scores(client.send(7.0).result(PATIENCE_S)) == [[7.0, 14.0, 21.0]]
        assert lab.first_sums == [7.0]
        wait_until(lambda: server._front.inside == 0)
