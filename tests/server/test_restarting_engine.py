"""A server whose only engine is started again, over real gRPC: nobody hears of it who has the time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from dnnserve.app import Server
from dnnserve.engine.runner import Runner

from tests.server.engines import Orders, toy_engines
from tests.server.fakes import PATIENCE_S, make_spec, wait_until
from tests.server.serving import Client, front_end, infer_request, make_config, scores, status
from tests.server.test_signs_of_life import host_of

CODE = grpc.StatusCode

__all__ = ["front_end"]


@contextmanager
def toy_server(folder: Path, **settings: Any) -> Iterator[tuple[Runner, Orders, Client]]:
    """A server with one engine process of toys."""
    engines, orders = toy_engines(folder)
    server = Server(make_config(**settings), ("cpu",), [make_spec()], engines, restartable=True, close=engines.close)
    server.start()
    try:
        with grpc.insecure_channel(server.addresses.grpc) as channel:
            yield server._runners[0], orders, Client(server, channel)
    finally:
        for name in ("pause", "shut"):
            if orders.given(name):
                orders.take_back(name)
        assert server.drain()


@pytest.mark.usefixtures("front_end")
def test_every_request_under_load_is_answered_though_the_only_engine_is_killed(tmp_path: Path) -> None:
    with toy_server(tmp_path) as (runner, _, client):
        values, killed = range(8), threading.Event()
        codes: list[grpc.StatusCode] = []
        wrong: list[object] = []

        def ask(value: float) -> None:
            while not killed.is_set():
                call = client.send(value)
                codes.append(code := status(call)[0])
                if code is CODE.OK and (found := scores(call.result())) != [[value, 2 * value, 3 * value]]:
                    wrong.append(found)

        askers = [threading.Thread(target=ask, args=(float(value),)) for value in values]
        for asker in askers:
            asker.start()
        wait_until(lambda: len(codes) > 2 * len(values))
        old = host_of(runner)
        os.kill(old.pid, signal.SIGKILL)
        wait_until(lambda: runner._host not in (None, old) and runner.in_service)
        killed.set()
        for asker in askers:
            asker.join(PATIENCE_S)
        assert not any(asker.is_alive() for asker in askers)
        assert not wrong
        assert runner.restarts == 1
        assert set(codes) == {CODE.OK}
        assert client.health_of() == "SERVING"


def test_a_request_without_the_time_is_told_when_to_come_back_and_the_server_is_not_ready_meanwhile(
    tmp_path: Path,
) -> None:
    with toy_server(tmp_path, front_ends=1) as (runner, orders, client):
        assert status(client.send())[0] is CODE.OK
        runner._opening_ns = 600 * 10**9
        orders.give("shut")
        os.kill(host_of(runner).pid, signal.SIGKILL)
        wait_until(lambda: client.health_of() == "NOT_SERVING")
        assert client.page("/readyz")[0] == 503
        patient = client.send(3.0, timeout=10_000.0)
        with pytest.raises(grpc.RpcError) as caught:
            client.infer.ModelInfer(infer_request(), timeout=PATIENCE_S)
        assert caught.value.code() is CODE.RESOURCE_EXHAUSTED
        trailers: Any = caught.value.trailing_metadata()
        assert 0 < int(dict(trailers)["grpc-retry-pushback-ms"]) <= 601_000
        assert client.metrics()["dnnserve_dropped_requests_total"]["toy", "restarting", "1"] == 1
        assert not patient.done()
        orders.take_back("shut")
        assert scores(patient.result(PATIENCE_S)) == [[3.0, 6.0, 9.0]]
        wait_until(lambda: client.health_of() == "SERVING")


def test_requests_that_wait_for_a_device_which_hangs_while_it_is_opened_are_told_so_and_it_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with toy_server(tmp_path) as (runner, orders, client):
        orders.give("shut")
        os.kill(host_of(runner).pid, signal.SIGKILL)
        wait_until(lambda: runner._opening_since_ns is not None)
        patient = client.send(3.0, timeout=10_000.0)
        wait_until(lambda: sum(runner._scheduler.queue_depths().values()) == 1)
        monkeypatch.setattr("dnnserve.engine.runner._LONGEST_OPENING_NS", 0)
        wait_until(patient.done)
        assert status(patient)[0] is CODE.UNAVAILABLE
        monkeypatch.undo()
        orders.take_back("shut")
        wait_until(lambda: client.health_of() == "SERVING")
        assert scores(client.send(4.0).result(PATIENCE_S)) == [[4.0, 8.0, 12.0]]
