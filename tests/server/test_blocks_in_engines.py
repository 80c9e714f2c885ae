"""Engines read rows where front ends have put them, and write outputs there: who dies, and who may have a block then."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from dnnserve.app import Server
from dnnserve.channel.port import Port
from dnnserve.channel.remote import RemoteScheduler
from dnnserve.engine.runner import Runner
from dnnserve.envelope import Answer, InferenceRequest
from dnnserve.errors import RequestCancelledError
from dnnserve.processes.arena import Arena
from dnnserve.processes.link import Link
from dnnserve.processes.outbox import Outbox
from dnnserve.processes.restarts import Restarts
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits

from tests.server.engines import toy_engines
from tests.server.fakes import PATIENCE_S, Inbox, block_of, make_rows, make_spec, outputs_of, wait_until
from tests.server.serving import Client, connected_anew, infer_request, make_config, scores, status
from tests.server.test_front_processes import fronts_of

SPEC = make_spec()


class Chain:
    """Front ends' ends of the channel, the scheduler, and engine processes."""

    def __init__(self, folder: Path, devices: int = 1) -> None:
        self.engines, self.orders = toy_engines(folder)
        self.scheduler, self.inbox = Scheduler(), Inbox()
        self.scheduler.start()
        models = {SPEC.key: SPEC.max_batch_rows}
        self.runners = [
            Runner(f"cpu#{number}", "cpu", models, self.engines, self.scheduler, restarts=Restarts(first_s=0.0))
            for number in range(devices)
        ]
        for runner in self.runners:
            runner.start()
        for runner in self.runners:
            runner.wait_loaded()
        self.scheduler.add_model(SPEC.key, Limits(max_batch_rows=8, max_queue_requests=100))
        self.fronts: list[RemoteScheduler] = []
        self.ports: list[Port] = []
        self._links: list[Link] = []
        self._threads: list[threading.Thread] = []

    def connect(self) -> RemoteScheduler:
        here, there = map(Link, Link.pair())
        arena = Arena.of(1 << 16)
        front = RemoteScheduler(here, arena, time.monotonic_ns)
        front.serve(((0, SPEC),))
        port = Port(self.scheduler, Outbox(there, "test"), Arena(os.dup(arena.fd)), {0: SPEC})
        arena.close()

        def hear() -> None:
            while (received := here.receive()) is not None:
                front.complete(received[0])
            front.lose("the end")

        def listen() -> None:
            while (received := there.receive()) is not None:
                port.take(received[0])
            port.close()

        self.ports.append(port)
        self._links += here, there
        self._threads += threading.Thread(target=hear), threading.Thread(target=listen)
        for thread in self._threads[-2:]:
            thread.start()
        return front

    def disconnect(self) -> None:
        """The last front end ends."""
        self._links[-2].shut_down()
        for thread in self._threads[-2:]:
            thread.join()

    def submit(self, front: RemoteScheduler | Scheduler, rows: np.ndarray) -> InferenceRequest:
        request = InferenceRequest(SPEC.key, block_of(rows), time.monotonic_ns(), None, self.inbox.deliver)
        front.submit(request)
        return request

    def close(self) -> None:
        for link in self._links:
            link.shut_down()
        for thread in self._threads:
            thread.join()
        self.scheduler.stop()
        assert all(runner.join(PATIENCE_S) for runner in self.runners)
        self.engines.close()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    chain = Chain(tmp_path)
    yield chain
    chain.close()


def check(request: InferenceRequest, value: float) -> None:
    assert outputs_of(request).tolist() == [[value, 2 * value, 3 * value]] * len(request.block)


def test_batches_of_two_front_ends_and_of_this_process_are_computed_together(chain: Chain) -> None:
    first, second = chain.connect(), chain.connect()
    chain.orders.give("pause")
    chain.submit(chain.scheduler, make_rows(0.0))  # holds the device up until the others wait together
    wait_until(lambda: chain.orders.given("staged"))
    requests = [
        chain.submit(where, make_rows(value, rows))
        for where, value, rows in ((first, 1.0, 2), (second, 2.0, 1), (chain.scheduler, 3.0, 3))
    ]
    pixels = chain.submit(second, np.full((1, 2, 4, 3), 2, np.uint8))
    wait_until(lambda: chain.scheduler.in_flight == 5)
    chain.orders.take_back("pause")
    chain.inbox.wait(5)
    for request, value in zip(requests, (1.0, 2.0, 3.0), strict=True):
        assert isinstance(chain.inbox.of(request).outcome, Answer)
        assert outputs_of(request)[:, 0].tolist() == [value] * len(request.block)
    assert outputs_of(pixels)[0, 0] == 2.0 * 24
    (answer,) = {chain.inbox.of(request).outcome for request in (*requests, pixels)}
    assert isinstance(answer, Answer)
    assert answer.batch_rows == 7
    times = answer.times
    assert times.taken_ns <= times.staged_ns <= times.inferred_ns <= times.finished_ns


def test_an_engine_that_dies_while_it_writes_leaves_the_rows_for_the_next(tmp_path: Path) -> None:
    chain = Chain(tmp_path, devices=2)
    front = chain.connect()
    chain.orders.give("die")
    requests = [chain.submit(front, make_rows(float(value))) for value in range(4)]
    chain.inbox.wait(4)
    assert not chain.orders.given("die")
    for value, request in enumerate(requests):
        assert isinstance(chain.inbox.of(request).outcome, Answer)
        check(request, float(value))
    wait_until(lambda: sum(runner.restarts for runner in chain.runners) == 1)
    assert len(front._waiting) == len(front._held) == 0
    chain.close()


def test_a_killed_engine_gives_the_block_of_a_cancelled_request_back(chain: Chain) -> None:
    front = chain.connect()
    chain.orders.give("pause")
    running = chain.submit(front, make_rows(1.0))
    wait_until(lambda: chain.orders.given("staged"))
    front.cancel(running.ticket)
    chain.inbox.wait(1)
    assert isinstance(chain.inbox.of(running).outcome, RequestCancelledError)
    assert len(front._held) == 1, "the engine has it"
    (runner,) = chain.runners
    host = runner._host
    assert host is not None
    host.kill()
    wait_until(lambda: not front._held)
    chain.orders.take_back("pause")
    wait_until(lambda: runner.restarts == 1 and runner.in_service)
    later = chain.submit(front, make_rows(6.0))
    chain.inbox.wait(2)
    check(later, 6.0)


def test_the_arena_of_a_front_end_that_died_is_kept_for_its_batch_and_forgotten_after_it(chain: Chain) -> None:
    front = chain.connect()
    chain.orders.give("pause")
    chain.submit(front, make_rows(1.0))
    wait_until(lambda: chain.orders.given("staged"))
    chain.disconnect()
    (port,) = chain.ports
    assert not port.arena.closed
    chain.orders.take_back("pause")
    wait_until(lambda: port.arena.closed)
    successor = chain.connect()
    request = chain.submit(successor, make_rows(2.0))
    chain.inbox.wait(2)
    check(request, 2.0)
    assert chain.runners[0]._host._mapped == {chain.ports[1].arena}  # type: ignore[union-attr]


def test_a_front_end_that_is_killed_while_an_engine_has_its_rows_harms_nobody(tmp_path: Path) -> None:
    engines, orders = toy_engines(tmp_path)
    server = Server(make_config(front_ends=1), ("cpu",), [SPEC], engines, restartable=True, close=engines.close)
    server.start()
    with grpc.insecure_channel(server.addresses.grpc) as channel:
        client = Client(server, channel)
        orders.give("pause")
        lost = client.send(1.0)
        wait_until(lambda: orders.given("staged"))
        (front,) = fronts_of(server)._fronts
        os.kill(front.pid, signal.SIGKILL)
        assert status(lost)[0] is grpc.StatusCode.UNAVAILABLE
        wait_until(lambda: server.scheduler.in_flight == 0)
        orders.take_back("pause")
        with connected_anew(server) as again:
            answer = again.infer.ModelInfer(infer_request(3.0), timeout=PATIENCE_S, wait_for_ready=True)
        assert scores(answer) == [[3.0, 6.0, 9.0]]
        assert server.drain()
