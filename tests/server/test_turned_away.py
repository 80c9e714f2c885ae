"""Calls that are turned away before their requests are read, over real gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import dnnclient
import grpc
import pytest
from dnnserve.app import Server
from dnnserve.envelope import Completion, InferenceRequest
from dnnserve.errors import OverloadedError, RequestError, UnreachableError
from dnnserve.scheduling import outlook

from benchmarks.front_end import INFER
from tests.server.fakes import PATIENCE_S, Lab, make_rows, make_spec, wait_until
from tests.server.serving import Client, front_end, infer_request, scores, serving, status

__all__ = ["front_end"]

CODE = grpc.StatusCode
REFUSED = "ModelInfer", "toy", "RESOURCE_EXHAUSTED", "1"


class Crowd:
    """Has a server's scheduler refuse every request, as if others waited before it, until it may `go` on; or, with `most_rows`,
    those that have more, as if no device could do that in time. Requests of the priority
    `spares` go on, and are not counted.
    """

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch, most_rows: int = 0, spares: int = 0) -> None:
        self.asked = 0
        self._most_rows, self._spares, self._submit = most_rows, spares, server.scheduler.submit
        self.go = monkeypatch.undo
        monkeypatch.setattr(server.scheduler, "submit", self._refuse)

    def _refuse(self, *requests: InferenceRequest) -> None:
        for request in requests:
            if self._spares and request.priority == self._spares:
                self._submit(request)
                continue
            self.asked += 1
            if len(request.block) <= self._most_rows:
                self._submit(request)
                continue
            error: RequestError = UnreachableError("too short") if self._most_rows else OverloadedError("others wait")
            assert request.deadline_ns is not None
            error.answer_ns = request.deadline_ns + int(2 * PATIENCE_S * 1e9)
            request.sink([Completion(request, error, time.monotonic_ns())])


def call_without_request(client: Client, timeout_s: float) -> Any:
    """A call whose request never comes before it has ended: who answers it has not read it."""
    done = threading.Event()

    def nothing() -> Iterator[bytes]:
        done.wait(2 * PATIENCE_S)
        yield from ()

    call = client.channel.stream_unary(INFER, None, None).future(nothing(), timeout=timeout_s)
    call.add_done_callback(lambda _: done.set())
    return call


@pytest.fixture(autouse=True)
def refusals_hold_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("_SHORTEST_HOLD_NS", "_LONGEST_HOLD_NS"):
        monkeypatch.setattr(outlook, bound, 60_000_000_000)


def test_who_comes_behind_a_refused_request_is_refused_unread_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Lab(), front_end="fast") as (server, client), monkeypatch.context() as patch:
        crowd = Crowd(server, patch)
        assert status(client.send(timeout=PATIENCE_S))[0] is CODE.RESOURCE_EXHAUSTED
        behind = call_without_request(client, PATIENCE_S + 1)
        code, text = status(behind)
        assert (code, "because others wait" in text) == (CODE.RESOURCE_EXHAUSTED, True)
        trailers = dict(behind.trailing_metadata())
        assert 0 < int(trailers["grpc-retry-pushback-ms"]) <= 2000 * PATIENCE_S
        assert status(client.send(timeout=PATIENCE_S / 2))[0] is CODE.RESOURCE_EXHAUSTED
        assert crowd.asked == 2, "a nearer deadline goes ahead, so it is asked for"
        crowd.go()
        assert scores(client.infer.ModelInfer(infer_request(3.0))) == [[3.0, 6.0, 9.0]], (
            "without a deadline one is let in"
        )
        wait_until(lambda: client.metrics().get("dnnserve_requests_total", {}).get(REFUSED) == 3)
        dropped = client.metrics()["dnnserve_dropped_requests_total"]["toy", "overloaded", "1"]
        assert dropped == 1, "the scheduler, which counts the others, was replaced"
        assert client.metrics()["nv_inference_request_failure_total"]["toy", "REJECTED", "1"] == 1


def test_with_several_models_requests_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving(Lab(), specs=(make_spec(), make_spec("other", 2)), front_end="fast") as (server, client),
        monkeypatch.context() as patch,
    ):
        crowd = Crowd(server, patch)
        for number in range(3):
            assert status(client.send(timeout=PATIENCE_S + number))[0] is CODE.RESOURCE_EXHAUSTED
        assert crowd.asked == 3
        crowd.go()


@pytest.mark.parametrize(("parameter", "value"), [("priority", 1), ("timeout", 10_000_000)])
def test_where_requests_take_turns_by_more_than_their_deadlines_they_are_read(
    monkeypatch: pytest.MonkeyPatch, parameter: str, value: int
) -> None:
    with serving(Lab(), front_end="fast") as (server, client), monkeypatch.context() as patch:
        odd = infer_request()
        odd.parameters[parameter].int64_param = value
        client.infer.ModelInfer(odd, timeout=PATIENCE_S)
        crowd = Crowd(server, patch)
        for number in range(3):
            assert status(client.send(timeout=PATIENCE_S + number))[0] is CODE.RESOURCE_EXHAUSTED
        assert crowd.asked == 3
        crowd.go()


def test_who_states_a_priority_in_the_headers_is_read_while_others_are_refused_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        serving(Lab(), front_end="fast") as (server, client),
        monkeypatch.context() as patch,
        dnnclient.Client(server.addresses.grpc, model="toy", retry=None) as ours,
    ):
        crowd = Crowd(server, patch, spares=1)
        rows = {"data": make_rows(3.0)}
        for number in range(3):
            assert status(client.send(timeout=PATIENCE_S + number))[0] is CODE.RESOURCE_EXHAUSTED
            answer = ours.infer(rows, timeout_s=PATIENCE_S + number, priority=1)
            assert answer["scores"].tolist() == [[3.0, 6.0, 9.0]]
            with pytest.raises(dnnclient.OverloadedError):
                ours.infer(rows, timeout_s=PATIENCE_S + number, priority=3)
        assert crowd.asked == 1, "the first that had no priority, and nobody since"
        crowd.go()


@pytest.mark.usefixtures("front_end")
def test_a_priority_of_the_headers_holds_for_classes_too_and_one_of_the_message_wins(caplog: Any) -> None:
    with caplog.at_level("INFO", "dnnserve.access"), serving(Lab(), access_log=True) as (server, client):
        with dnnclient.Client(server.addresses.grpc, model="toy", priority=3) as ours:
            ours.classify(make_rows(1.0))
        request = infer_request()
        request.parameters["priority"].int64_param = 4
        client.infer.ModelInfer(request, timeout=PATIENCE_S, metadata=[("dnn-priority", "1")])
        wrong = client.infer.ModelInfer.future(infer_request(), timeout=PATIENCE_S, metadata=[("dnn-priority", "soon")])
        assert status(wrong) == (
            CODE.INVALID_ARGUMENT,
            "the header dnn-priority is 'soon'; send 1 for the most important, or 0 for the model's",
        )
        wait_until(lambda: len([record for record in caplog.records if record.name == "dnnserve.access"]) == 3)
    fields = [record.fields for record in caplog.records if record.name == "dnnserve.access"]
    assert [each.get("priority") for each in fields] == [3, 4, None]


def test_a_name_that_nobody_knows_is_told_when_its_request_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Lab(), front_end="fast") as (server, client), monkeypatch.context() as patch:
        crowd = Crowd(server, patch)
        assert status(client.send(timeout=PATIENCE_S))[0] is CODE.RESOURCE_EXHAUSTED
        nobody = infer_request(model="nobody")
        unread = client.infer.ModelInfer.future(nobody, timeout=PATIENCE_S + 1)
        assert status(unread)[0] is CODE.RESOURCE_EXHAUSTED, "what docs/client.md says of a name"
        crowd.go()
        assert status(client.infer.ModelInfer.future(nobody, timeout=PATIENCE_S / 2))[0] is CODE.NOT_FOUND


def test_with_an_access_log_each_call_has_its_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", "dnnserve.access"),
        serving(Lab(), front_end="fast", access_log=True) as (server, client),
        monkeypatch.context() as patch,
    ):
        crowd = Crowd(server, patch)
        for number in range(3):
            assert status(client.send(timeout=PATIENCE_S + number))[0] is CODE.RESOURCE_EXHAUSTED
        crowd.go()
    assert caplog.text.count("RESOURCE_EXHAUSTED") == 3


def test_a_front_end_in_a_process_of_its_own_hears_refusals_too_and_what_it_turns_away_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def turned_away() -> float:
        for number in range(4):
            assert status(client.send(timeout=PATIENCE_S + number))[0] is CODE.RESOURCE_EXHAUSTED
        return client.metrics()["dnnserve_dropped_requests_total"]["toy", "overloaded", "1"]

    with serving(Lab(), front_end="fast", front_ends=1) as (server, client), monkeypatch.context() as patch:
        crowd = Crowd(server, patch)
        wait_until(lambda: turned_away() > 0)  # the scheduler, which counts the others, was replaced
        crowd.go()
        assert scores(client.infer.ModelInfer(infer_request(3.0))) == [[3.0, 6.0, 9.0]]


def test_while_the_reader_is_behind_the_newest_call_is_read_first_and_every_call_ends_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab()
    with serving(lab, front_end="fast", max_queue_requests=1000) as (server, client):
        assert server.scheduler.in_flight == 0
        door = server._front._service.door  # type: ignore[attr-defined]
        monkeypatch.setattr(door, "lags", lambda _now_ns: True)
        for value in range(3):
            assert scores(client.send(float(value)).result(PATIENCE_S))[0][0] == value, "nobody is left waiting"
        calls = [client.send(1.0 + number) for number in range(300)]
        codes = [status(call)[0] for call in calls]
        assert set(codes) <= {CODE.OK, CODE.RESOURCE_EXHAUSTED}
        for number, (code, call) in enumerate(zip(codes, calls, strict=True)):
            assert code is not CODE.OK or scores(call.result())[0][0] == 1.0 + number
        assert CODE.OK in codes
        counted = client.metrics()["dnnserve_requests_total"]
        ends = {status: counted.get(("ModelInfer", "toy", status, "1"), 0.0) for status in ("OK", "RESOURCE_EXHAUSTED")}
        assert ends == {"OK": 3.0 + codes.count(CODE.OK), "RESOURCE_EXHAUSTED": codes.count(CODE.RESOURCE_EXHAUSTED)}


def test_who_asks_for_the_impossible_keeps_nobody_out_who_asks_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Lab(), front_end="fast") as (server, client), monkeypatch.context() as patch:
        crowd = Crowd(server, patch, most_rows=1)
        for value in (1.0, 2.0, 3.0):
            assert scores(client.send(value).result(PATIENCE_S))[0][0] == value
            assert status(client.send(count=8))[0] is CODE.DEADLINE_EXCEEDED
        assert crowd.asked == 6
        crowd.go()


def test_who_waits_for_long_hides_nobody_who_gives_up_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Lab(), front_end="fast") as (server, client):
        lane = server._front._server._lane  # type: ignore[attr-defined]
        monkeypatch.setattr(lane.door, "lags", lambda _now_ns: True)
        asked = threading.Event()
        ask, asking = lane._ask, threading.Event()

        def wait_to_ask() -> None:
            if asking.wait(0.001):
                now_ns = time.monotonic_ns() + int(
                    PATIENCE_S * 1e9
                )  # half of what the short ones have, a hundredth of the long
                monkeypatch.setattr(lane, "clock", lambda: now_ns)
                ask()
                asked.set()

        monkeypatch.setattr(lane, "_ask", wait_to_ask)
        long = client.send(timeout=100 * PATIENCE_S)
        wait_until(lambda: len(lane.waiting) == 1)
        short = [client.send(timeout=2 * PATIENCE_S) for _ in range(20)]
        wait_until(lambda: len(lane.waiting) == 21)
        asking.set()
        assert {status(call)[0] for call in short} == {CODE.RESOURCE_EXHAUSTED}
        assert asked.wait(PATIENCE_S)
        assert scores(long.result(PATIENCE_S))[0][0] == 1.0


def test_a_lane_without_work_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Lab(), front_end="fast") as (server, client):
        rested: list[int] = []
        monkeypatch.setattr(server._front._service.door, "rested", rested.append)  # type: ignore[attr-defined]
        began_ns = time.monotonic_ns()
        client.send().result(PATIENCE_S)
        assert rested
        assert rested[0] > began_ns
