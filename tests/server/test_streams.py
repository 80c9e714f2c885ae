"""ModelStreamInfer over real gRPC, beside both front ends, with fake devices behind it."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from dnnserve.front import streams
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.serving import Client, front_end, infer_request, scores, serving, status

CODE = grpc.StatusCode

__all__ = ["front_end"]
pytestmark = pytest.mark.usefixtures("front_end")


@pytest.fixture
def lab() -> Lab:
    return Lab()


class Stream:
    """A stream whose requests the test sends one by one."""

    def __init__(self, client: Client, timeout: float | None = None) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sent = 0
        self.call = client.infer.ModelStreamInfer(self._taken(), timeout=timeout)
        self.call.add_callback(self.end)  # gRPC's thread waits for the next request, also of a call that has ended

    def send(self, value: float, **changes: Any) -> None:
        self._requests.put(infer_request(value, **changes))

    def end(self) -> None:
        self._requests.put(None)

    def next(self) -> Any:
        return next(self.call)

    def _taken(self) -> Iterator[Any]:
        while (request := self._requests.get()) is not None:
            yield request
            self.sent += 1


def test_each_request_has_one_response_and_an_error_does_not_end_the_stream(lab: Lab) -> None:
    with serving(lab) as (_, client):
        stream = Stream(client)
        for value in (1.0, 2.0):
            stream.send(value)
            answer = stream.next()
            assert (answer.infer_response.id, answer.error_message) == (f"value {value}", "")
            assert scores(answer.infer_response) == [[value, 2.0 * value, 3.0 * value]]
        stream.send(3.0, model="nope")
        refused = stream.next()
        assert (refused.infer_response.id, "'nope'" in refused.error_message) == ("value 3.0", True)
        for value in range(4, 20):
            stream.send(float(value))
        stream.end()
        rest = {answer.infer_response.id: scores(answer.infer_response)[0][0] for answer in stream.call}
        assert rest == {f"value {float(value)}": value for value in range(4, 20)}
        assert stream.call.code() is CODE.OK
        metrics = client.metrics()["dnnserve_requests_total"]
        assert metrics["ModelStreamInfer", "toy", "OK", "1"] == 18


def test_responses_come_in_the_order_in_which_they_are_done(lab: Lab) -> None:
    with serving(lab) as (_, client):
        lab.pause("cpu")
        stream = Stream(client)
        stream.send(1.0)
        lab.wait_running("cpu")
        stream.send(2.0, count=9)  # refused at once
        assert stream.next().infer_response.id == "value 2.0"
        lab.resume()
        assert stream.next().infer_response.id == "value 1.0"
        stream.call.cancel()


def test_no_request_is_read_while_too_many_are_unanswered(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.InferStreams.__init__, "__defaults__", (2, 4))
    with serving(lab) as (server, client):
        lab.pause("cpu")
        stream = Stream(client)
        for value in range(40):
            stream.send(float(value))
        stream.end()
        wait_until(lambda: server.scheduler.in_flight == 4)
        assert not threading.Event().wait(0.1)
        assert server.scheduler.in_flight == 4
        lab.resume()
        assert len(list(stream.call)) == 40


def test_a_client_that_leaves_takes_its_requests_along(lab: Lab) -> None:
    with serving(lab) as (server, client):
        lab.pause("cpu")
        running = client.send(5.0)
        lab.wait_running("cpu")
        stream = Stream(client)
        for value in range(6):
            stream.send(float(value))
        wait_until(lambda: sum(server.scheduler.queue_depths().values()) == 6)
        stream.call.cancel()
        wait_until(lambda: sum(server.scheduler.queue_depths().values()) == 0)
        lab.resume()
        assert scores(running.result(PATIENCE_S)) == [[5.0, 10.0, 15.0]]
        wait_until(lambda: server._front.inside == 0)


CLIENT = """
import sys, threading
import grpc

address, requests = sys.argv[1], [bytes.fromhex(text) for text in sys.argv[2:]]

def send():
    yield from requests
    threading.Event().wait()

with grpc.insecure_channel(address) as channel:
    for _ in channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(send()):
        pass
"""


def test_a_client_that_is_killed_in_the_middle_of_a_stream_takes_its_requests_along(lab: Lab) -> None:
    with serving(lab) as (server, client):
        lab.pause("cpu")
        running = client.send(5.0)
        lab.wait_running("cpu")
        requests = [infer_request(float(value)).SerializeToString().hex() for value in range(6)]
        with subprocess.Popen([sys.executable, "-c", CLIENT, server.addresses.grpc, *requests]) as killed:
            try:
                wait_until(lambda: sum(server.scheduler.queue_depths().values()) == 6)
            finally:
                killed.kill()
        mate = client.send(6.0)
        wait_until(lambda: sum(server.scheduler.queue_depths().values()) == 1)  # its own alone
        lab.resume()
        assert scores(running.result(PATIENCE_S)) == [[5.0, 10.0, 15.0]]
        assert scores(mate.result(PATIENCE_S)) == [[6.0, 12.0, 18.0]]
        wait_until(lambda: server._front.inside == 0)
        assert lab.first_sums == [5.0, 6.0]
        wait_until(lambda: server._front._server._streams._places._taken == 0)  # type: ignore[attr-defined]


def test_idle_streams_have_a_bound_and_keep_nobody_from_an_answer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.InferStreams.__init__, "__defaults__", (2, 4))
    with serving(lab, grpc_threads=1) as (_, client):
        idle = [Stream(client) for _ in range(2)]
        for stream in idle:
            stream.send(1.0)
            stream.next()
        assert status(Stream(client).next)[0] is CODE.RESOURCE_EXHAUSTED
        assert client.metrics()["dnnserve_requests_total"]["ModelStreamInfer", "", "RESOURCE_EXHAUSTED", ""] == 1
        assert scores(client.send(7.0).result(PATIENCE_S))[0][0] == 7.0
        idle.pop().call.cancel()

        def has_place() -> bool:
            stream = Stream(client)
            stream.send(2.0)
            return status(stream.next)[0] is CODE.OK

        wait_until(has_place)


@contextmanager
def silent_streams(client: Client, path: str, count: int) -> Iterator[Sequence[Any]]:
    """Calls that nothing comes of but their headers."""
    hold = threading.Event()

    def nothing() -> Iterator[bytes]:
        hold.wait(4 * PATIENCE_S)
        yield from ()

    method = client.channel.stream_stream(path, None, None)
    calls = [method(nothing()) for _ in range(count)]
    try:
        yield calls
    finally:
        for call in calls:
            call.cancel()  # type: ignore[no-untyped-call]
        hold.set()


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", 16),
        ("/grpc.health.v1.Health/Watch", 64),
    ],
)
def test_hundreds_of_silent_streams_of_one_kind_keep_none_of_another_out(lab: Lab, path: str, places: int) -> None:
    with serving(lab) as (_, client), silent_streams(client, path, 300) as silent:
        wait_until(lambda: sum(call.done() for call in silent) == 300 - places)
        assert {call.code() for call in silent if call.done()} == {CODE.RESOURCE_EXHAUSTED}
        counted = client.metrics()["dnnserve_requests_total"][path.rpartition("/")[2], "", "RESOURCE_EXHAUSTED", ""]
        assert 0 < counted <= 300 - places  # on the public front end gRPC refuses some before us
        stream = Stream(client)
        stream.send(1.0)
        assert scores(stream.next().infer_response) == [[1.0, 2.0, 3.0]]
        stream.call.cancel()
        assert scores(client.send(7.0).result(PATIENCE_S))[0][0] == 7.0
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        describe = reflection_pb2_grpc.ServerReflectionStub(client.channel).ServerReflectionInfo
        watch = client.health.Watch
        for own, call in (
            ("ServerReflectionInfo", lambda: next(describe(iter([request]), timeout=PATIENCE_S))),
            ("Watch", lambda: next(watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S))),
        ):
            code, _ = status(call)
            assert code is (CODE.RESOURCE_EXHAUSTED if path.endswith(own) else CODE.OK)
        silent[[call.done() for call in silent].index(False)].cancel()
        wait_until(lambda: status(lambda: next(describe(iter([request]), timeout=PATIENCE_S)))[0] is CODE.OK)
        wait_until(lambda: status(lambda: next(watch(health_pb2.HealthCheckRequest())))[0] is CODE.OK)


def test_a_watch_without_a_request_is_unimplemented(lab: Lab) -> None:
    with serving(lab) as (_, client):
        watch: Any = client.channel.stream_stream("/grpc.health.v1.Health/Watch", None, None)
        code, text = status(lambda: next(watch(iter(()), timeout=PATIENCE_S)))
        assert code is CODE.UNIMPLEMENTED
        assert "exactly one request message" in text


def test_garbage_is_an_error_of_its_request(lab: Lab) -> None:
    with serving(lab) as (_, client):
        path = "/inference.GRPCInferenceService/ModelStreamInfer"
        answers = client.channel.stream_stream(path, None, None)(iter([b"\xff", b"\xff"]), timeout=PATIENCE_S)
        assert all(b"are no inference.ModelInferRequest" in answer for answer in answers)
