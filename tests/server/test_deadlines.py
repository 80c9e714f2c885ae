"""Deadlines that come with calls: kept when the wall clock is set, and refused when they have passed on arrival."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from dnnserve.app import Server

from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.serving import front_end, scores, serving, status
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
            for request in server.scheduler._pending.values():
                assert request.deadline_ns is not None
                assert 0 < request.deadline_ns - now_ns < 2 * (PATIENCE_S + 1) * 1e9
            lab.resume()
            assert scores(running.result(PATIENCE_S)) == [[2.0, 4.0, 6.0]]
            assert scores(patient.result(PATIENCE_S)) == [[3.0, 6.0, 9.0]]
            assert scores(stream.next().infer_response) == [[5.0, 10.0, 15.0]]
        stream.call.cancel()
        assert status(client.send())[0] is CODE.OK
