"""Requests that wait: deadlines, priorities, cancellations, bounds."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest
from dnnserve.app import Server

from tests.server.fakes import PATIENCE_S, Lab, make_spec, wait_until
from tests.server.serving import Client, infer_request, scores, serving, status

CODE = grpc.StatusCode

pytestmark = pytest.mark.usefixtures("front_end")


def depth(server: Server) -> int:
    return sum(server.scheduler.queue_depths().values())


def test_a_grpc_deadline_bounds_the_time_in_the_queue_and_batch_mates_are_answered(
    lab: Lab, served: tuple[Server, Client]
) -> None:
    server, client = served
    lab.pause("cpu")
    running = client.send(1.0)
    lab.wait_running("cpu")
    patient = client.send(3.0)
    wait_until(lambda: depth(server) == 1)
    late = client.send(2.0, timeout=0.05)
    assert status(late)[0] is CODE.DEADLINE_EXCEEDED
    wait_until(lambda: depth(server) == 1)  # its client may know before the server does
    lab.resume()
    assert scores(running.result(PATIENCE_S)) == [[1.0, 2.0, 3.0]]
    assert scores(patient.result(PATIENCE_S)) == [[3.0, 6.0, 9.0]]
    assert sum(rows for _, rows in lab.batches) == 2, "the late request ran"


def test_the_timeout_parameter_is_answered_by_the_server_itself(lab: Lab, client: Client) -> None:
    lab.pause("cpu")
    running = client.send()
    lab.wait_running("cpu")
    request = infer_request()
    request.parameters["timeout"].int64_param = 20_000
    code, message = status(client.infer.ModelInfer.future(request, timeout=PATIENCE_S))
    assert code is CODE.DEADLINE_EXCEEDED
    assert "deadline was 20.0 ms after arrival" in message
    lab.resume()
    assert status(running)[0] is CODE.OK


def test_a_models_own_deadline_holds_for_requests_that_bring_none(lab: Lab) -> None:
    specs = (replace(make_spec("hasty"), default_deadline_ns=30_000_000), make_spec("patient"))
    with serving(lab, specs=specs) as (_, client):
        lab.pause("cpu")
        running = client.infer.ModelInfer.future(infer_request(model="patient"))
        lab.wait_running("cpu")
        waiting = client.infer.ModelInfer.future(infer_request(model="patient"))
        code, message = status(client.infer.ModelInfer.future(infer_request(model="hasty")))
        assert code is CODE.DEADLINE_EXCEEDED
        assert "deadline was 30.0 ms after arrival" in message
        lab.resume()
        assert [status(call)[0] for call in (running, waiting)] == [CODE.OK, CODE.OK]


def test_what_is_more_important_goes_first_by_the_request_or_by_its_model(lab: Lab) -> None:
    specs = (make_spec(max_batch_rows=1), replace(make_spec("urgent", max_batch_rows=1), priority=1))
    with serving(lab, specs=specs) as (server, client):
        lab.pause("cpu")
        running = client.send(0.0)
        lab.wait_running("cpu")
        requests = {name: infer_request(float(value)) for value, name in enumerate(("last", "usual", "first"), start=1)}
        requests["last"].parameters["priority"].uint64_param = 8
        requests["first"].parameters["priority"].uint64_param = 1
        calls = {}
        for count, (name, request) in enumerate(requests.items(), start=2):
            calls[name] = client.infer.ModelInfer.future(request)
            wait_until(lambda count=count: server.scheduler.in_flight == count)  # type: ignore[misc]
        own = client.infer.ModelInfer.future(infer_request(5.0, model="urgent"))
        wait_until(lambda: server.scheduler.in_flight == 5)
        waiting = {float(each.block.read()[0].sum()): each.priority for each in server.scheduler._ledger.requests}
        assert waiting == {0.0: 0, 1.0: 8, 2.0: 0, 3.0: 1, 5.0: 1}
        lab.resume()
        assert all(status(call)[0] is CODE.OK for call in (running, own, *calls.values()))
    order = [value for value in lab.first_sums if value in (1.0, 2.0, 3.0)]
    assert order == [3.0, 2.0, 1.0]


def test_cancelling_any_member_of_a_running_batch_harms_no_other(lab: Lab) -> None:
    with serving(lab, hold_until_requests=5) as (_, client):
        lab.pause("cpu")
        calls = [client.send(float(value)) for value in range(5)]
        lab.wait_running("cpu")
        assert lab.batches == [("cpu", 5)]
        for position in (0, 3):
            assert calls[position].cancel()
        lab.resume()
        for position in (1, 2, 4):
            assert scores(calls[position].result(PATIENCE_S)) == [[position, 2.0 * position, 3.0 * position]]
        assert scores(client.send(7.0).result(PATIENCE_S)) == [[7.0, 14.0, 21.0]]


def test_a_queued_call_that_is_cancelled_frees_its_place(lab: Lab) -> None:
    with serving(lab, max_queue_requests=1) as (server, client):
        lab.pause("cpu")
        running = client.send(1.0)
        lab.wait_running("cpu")
        queued = client.send(2.0)
        wait_until(lambda: depth(server) == 1)
        code, message = status(client.send(3.0))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert "--max-queue" in message
        queued.cancel()
        wait_until(lambda: depth(server) == 0)
        after = client.send(4.0)
        wait_until(lambda: depth(server) == 1)
        lab.resume()
        assert scores(running.result(PATIENCE_S)) == [[1.0, 2.0, 3.0]]
        assert scores(after.result(PATIENCE_S)) == [[4.0, 8.0, 12.0]]
        assert [rows for _, rows in lab.batches] == [1, 1]


def test_beyond_the_bound_on_calls_they_are_refused_at_once(lab: Lab) -> None:
    with serving(lab, grpc_threads=1, max_calls=4) as (_, client):
        lab.pause("cpu")
        calls = [client.send() for _ in range(12)]
        wait_until(lambda: sum(call.done() for call in calls) == 8)
        lab.resume()
        codes = [status(call)[0] for call in calls]
        assert (codes.count(CODE.OK), codes.count(CODE.RESOURCE_EXHAUSTED)) == (4, 8)
