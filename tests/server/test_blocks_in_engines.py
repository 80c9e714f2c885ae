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
from dnnserve.catalog import ModelSpec
from dnnserve.channel.port import Port
from dnnserve.channel.remote import RemoteScheduler
from dnnserve.engine.net import ServedModel, signature_of
from dnnserve.engine.process import EngineProcesses, ProcessHost
from dnnserve.engine.runner import Runner
from dnnserve.envelope import Answer, InferenceRequest, ModelKey
from dnnserve.errors import RequestCancelledError
from dnnserve.processes.arena import Arena
from dnnserve.processes.link import Link
from dnnserve.processes.outbox import Outbox
from dnnserve.processes.restarts import Restarts
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits

from dnncore.nn import BATCH, Model, NetBuilder
from tests.e2e.emulated import use_emulator
from tests.server.engines import Orders, arenas_of, obedient_engines, toy_engines
from tests.server.fakes import PATIENCE_S, Inbox, block_of, make_rows, make_spec, outputs_of, wait_until
from tests.server.serving import Client, connected_anew, infer_request, make_config, scores, status
from tests.server.test_front_processes import fronts_of

SPEC = make_spec()


class Chain:
    """Front ends' ends of the channel, the scheduler, and engine processes.

    Args:
        folder: Of the orders for the engines.
        devices: How many engines there are.
        device: What they open.
        spec: The model that they run.
        engines: Them, and their orders; None: toys.
        arena_bytes: Of each front end.
    """

    def __init__(
        self,
        folder: Path,
        devices: int = 1,
        device: str = "cpu",
        spec: ModelSpec = SPEC,
        engines: tuple[EngineProcesses, Orders] | None = None,
        arena_bytes: int = 1 << 16,
    ) -> None:
        self.engines, self.orders = engines or toy_engines(folder)
        self.scheduler, self.inbox = Scheduler(), Inbox()
        self.scheduler.start()
        self._spec, self._arena_bytes = spec, arena_bytes
        models = {spec.key: spec.max_batch_rows}
        self.runners = [
            Runner(f"{device}#{number}", device, models, self.engines, self.scheduler, restarts=Restarts(first_s=0.0))
            for number in range(devices)
        ]
        for runner in self.runners:
            runner.start()
        for runner in self.runners:
            runner.wait_loaded()
        self.scheduler.add_model(spec.key, Limits(max_batch_rows=spec.max_batch_rows, max_queue_requests=100))
        self.fronts: list[RemoteScheduler] = []
        self.ports: list[Port] = []
        self._links: list[Link] = []
        self._threads: list[threading.Thread] = []

    def connect(self) -> RemoteScheduler:
        here, there = map(Link, Link.pair())
        arena = Arena.of(self._arena_bytes)
        front = RemoteScheduler(here, arena, time.monotonic_ns)
        front.serve(((0, self._spec),))
        port = Port(self.scheduler, Outbox(there, "test"), Arena(os.dup(arena.fd)), {0: self._spec})
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
        request = InferenceRequest(self._spec.key, block_of(rows), time.monotonic_ns(), None, self.inbox.deliver)
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


def planes(value: float, count: int) -> np.ndarray:
    """Rows of 128 KiB whose mean is `value`: four of them are read by a GPU where they are."""
    return np.full((count, 8, 64, 64), value, np.float32)


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chain]:
    """A GPU that gives (j + 1) times the mean of eight planes."""
    use_emulator(monkeypatch, devices=1, build="fast")
    net = NetBuilder("planes")
    mean = net.pooling("mean", net.input("data", (BATCH, 8, 64, 64)), "average_include_padding", 64)
    graph = net.build(net.inner_product("scores", mean, 3, bias=False))
    weights = {"scores.weight": np.repeat(np.array([[1], [2], [3]], np.float32) / 8, 8, axis=1)}
    spec = ModelSpec(ModelKey("planes", 1), signature_of(graph), ("ant", "bee", "cat"), None, 8)
    engines = obedient_engines(tmp_path, {spec.key: ServedModel(Model(graph, weights), None)})
    chain = Chain(tmp_path, device="cuda:0", spec=spec, engines=engines, arena_bytes=1 << 23)
    yield chain
    chain.close()


def host_of(chain: Chain) -> ProcessHost:
    host = chain.runners[0]._host
    assert isinstance(host, ProcessHost)
    return host


def lock_arena(chain: Chain, front: RemoteScheduler) -> int:
    """Have the engine's GPU read this front end's rows where they are, from the next request on; the bytes that it has read so."""
    before = chain.runners[0].input_bytes["arena"]
    while (there := chain.runners[0].input_bytes["arena"]) == before:
        request = chain.submit(front, planes(1.0, 4))
        wait_until(lambda: not front._waiting)
        check(request, 1.0)
    return there


def run_paused(chain: Chain, front: RemoteScheduler, value: float) -> InferenceRequest:
    """A request that the engine has, and whose batch does not end; nothing else runs."""
    chain.orders.give("pause")
    chain.orders.take_back("staged")
    request = chain.submit(front, planes(value, 4))
    wait_until(lambda: chain.orders.given("staged"))
    return request


@pytest.mark.cuda
def test_a_gpu_reads_large_rows_where_front_ends_have_put_them_and_small_ones_in_a_slot(gpu: Chain) -> None:
    first, second = gpu.connect(), gpu.connect()
    lock_arena(gpu, first)
    lock_arena(gpu, second)
    before = gpu.runners[0].input_bytes
    answered = len(gpu.inbox.completions)
    run_paused(gpu, first, 9.0)  # holds the device up until the others wait together
    requests = [
        (value, gpu.submit(where, planes(value, count)))
        for where, value, count in ((first, 1.0, 1), (second, 2.0, 4), (first, 3.0, 2))
    ]
    gpu.orders.take_back("pause")
    gpu.inbox.wait(answered + 4)
    for value, request in requests:
        check(request, value)
    after = gpu.runners[0].input_bytes
    assert {place: after[place] - before[place] for place in before} == {"slot": 3 << 17, "arena": 8 << 17}


@pytest.mark.cuda
def test_what_a_gpu_reads_is_given_to_nobody_before_its_batch_has_ended_whoever_gives_up(gpu: Chain) -> None:
    front = gpu.connect()
    lock_arena(gpu, front)
    answered = len(gpu.inbox.completions)
    given_up = run_paused(gpu, front, 5.0)
    (held,) = [block.offset for _, block in front._waiting.values()]
    front.cancel(given_up.ticket)
    gpu.inbox.wait(answered + 1)
    assert isinstance(gpu.inbox.of(given_up).outcome, RequestCancelledError)
    later = gpu.submit(front, planes(6.0, 4))
    (other,) = [block.offset for _, block in front._waiting.values()]
    assert [block.offset for block in front._held.values()] == [held] != [other]
    gpu.orders.take_back("pause")
    gpu.inbox.wait(answered + 2)
    check(later, 6.0)
    wait_until(lambda: not front._held)

    run_paused(gpu, front, 7.0)
    gpu.disconnect()
    assert not gpu.ports[0].arena.closed
    assert arenas_of(host_of(gpu).pid) == 1
    gpu.orders.take_back("pause")
    wait_until(lambda: gpu.ports[0].arena.closed)
    lock_arena(gpu, gpu.connect())
    wait_until(lambda: arenas_of(host_of(gpu).pid) == 1)


@pytest.mark.cuda
def test_rows_that_a_killed_engine_was_reading_are_read_by_its_successor(gpu: Chain) -> None:
    front = gpu.connect()
    lock_arena(gpu, front)
    answered, killed = len(gpu.inbox.completions), host_of(gpu)
    request = run_paused(gpu, front, 6.0)
    killed.kill()
    gpu.orders.take_back("pause")
    gpu.inbox.wait(answered + 1)
    check(request, 6.0)
    assert host_of(gpu) is not killed
    lock_arena(gpu, front)
