"""What the fast lane does that the public front end cannot, and what both promise to the letter."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from dnnserve.app import Server
from dnnserve.errors import QueueFullError, StartError
from dnnserve.front import lane, server
from dnnserve.front.call import Call
from dnnserve.front.classifier import CLASSIFY, classifier_methods
from dnnserve.logs import JsonFormatter
from grpc_health.v1 import health_pb2
from PIL import Image

from benchmarks import core_client, frame_client
from benchmarks.front_end import INFER
from benchmarks.trace import read_trace
from tests.server.fakes import PATIENCE_S, Lab, make_spec, wait_until
from tests.server.serving import Client, front_end, infer_request, make_config, scores, serving, status

CODE = grpc.StatusCode

__all__ = ["front_end"]


@pytest.fixture
def lab() -> Lab:
    return Lab()


@contextmanager
def silent_streams(client: Client, path: str, count: int) -> Iterator[None]:
    """Calls whose request never comes."""
    hold = threading.Event()

    def nothing() -> Iterator[bytes]:
        hold.wait(4 * PATIENCE_S)
        yield from ()

    calls = [client.channel.stream_unary(path, None, None).future(nothing()) for _ in range(count)]
    try:
        yield
    finally:
        for call in calls:
            call.cancel()  # type: ignore[no-untyped-call]
        hold.set()


def test_streams_whose_request_never_comes_keep_nobody_from_an_answer(lab: Lab) -> None:
    with (
        serving(lab) as (_, client),
        silent_streams(client, "/inference.GRPCInferenceService/ModelInfer", 80),
        silent_streams(client, "/inference.GRPCInferenceService/ServerLive", 80),
        silent_streams(client, "/grpc.health.v1.Health/Check", 80),
    ):
        assert scores(client.send(7.0).result(PATIENCE_S))[0][0] == 7.0
        assert client.infer.ServerLive(inference.ServerLiveRequest(), timeout=PATIENCE_S).live
        assert client.health_of() == "SERVING"


def test_on_the_public_front_end_they_leave_what_is_answered_at_once(lab: Lab) -> None:
    with (
        serving(lab, front_end="public", grpc_threads=4) as (_, client),
        silent_streams(client, "/inference.GRPCInferenceService/ModelInfer", 4),
        silent_streams(client, "/dnnapi.v1.ClassifierService/GetModel", 4),
    ):
        assert client.infer.ServerLive(inference.ServerLiveRequest(), timeout=PATIENCE_S).live
        assert client.health_of() == "SERVING"


def test_thousands_of_calls_at_once_are_answered_or_refused_and_none_is_cancelled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, go = threading.Event(), threading.Event()

    def hold(call: Call, _message: bytes) -> None:
        busy.set()
        assert go.wait(PATIENCE_S)
        call.finish(b"")

    monkeypatch.setattr(server, "classifier_methods", lambda service: {**classifier_methods(service), CLASSIFY: hold})
    with serving(lab, front_end="fast", max_queue_requests=64, max_calls=512) as (_, client):
        holding = client.classifier.Classify.future(classifier.ClassifyRequest(), timeout=PATIENCE_S)
        assert busy.wait(PATIENCE_S)  # nobody takes calls any more
        request = infer_request().SerializeToString()
        method = client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        calls = [method.future(request, timeout=PATIENCE_S) for _ in range(2000)]
        assert not any(call.done() for call in calls)
        go.set()
        codes = [status(call)[0] for call in calls]
        assert status(holding)[0] is CODE.OK
    assert set(codes) == {CODE.OK, CODE.RESOURCE_EXHAUSTED}


def test_refusals_by_the_bound_on_calls_are_counted_and_tell_when_to_come_again(lab: Lab) -> None:
    with serving(lab, max_calls=1) as (_, client):
        lab.pause("cpu")
        running = client.send()
        lab.wait_running("cpu")
        assert status(client.send())[0] is CODE.RESOURCE_EXHAUSTED
        lab.resume()
        assert status(running)[0] is CODE.OK
        wait_until(lambda: status(client.send())[0] is CODE.OK)
        assert client.metrics()["dnnserve_requests_total"]["ModelInfer", "", "RESOURCE_EXHAUSTED", ""] >= 1


def test_beyond_the_bound_on_connections_a_client_finds_no_server(lab: Lab) -> None:
    with serving(lab, max_connections=1) as (running, client):
        assert status(client.send())[0] is CODE.OK
        apart = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(running.addresses.grpc, options=apart) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ServerLive", None, None)
            assert status(lambda: method(b"", timeout=PATIENCE_S))[0] is CODE.UNAVAILABLE
        assert status(client.send())[0] is CODE.OK


def test_messages_that_grpc_refuses_are_counted_and_logged(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "dnnserve.access"),
        serving(lab, front_end="fast", max_message_mib=1, access_log=True) as (_, client),
    ):
        method = client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        for _ in range(3):
            code, text = status(lambda: method(bytes(2 << 20), timeout=PATIENCE_S))
            assert (code, "message larger than max" in text) == (CODE.RESOURCE_EXHAUSTED, True)
        refused = "ModelInfer", "", "RESOURCE_EXHAUSTED", ""
        wait_until(lambda: client.metrics().get("dnnserve_requests_total", {}).get(refused) == 3)
        assert caplog.text.count("RESOURCE_EXHAUSTED") == 3
        assert "too large (--max-message-mib)" in caplog.text
        assert status(client.send())[0] is CODE.OK
        front = client.metrics()["dnnserve_requests_total"]
        assert front == {refused: 3, ("ModelInfer", "toy", "OK", "1"): 1}


@pytest.mark.usefixtures("front_end")
def test_an_error_that_knows_when_to_retry_tells_the_client(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lab) as (running, client):

        def full(_request: object) -> None:
            error = QueueFullError("full")
            error.retry_after_ms = 25
            raise error

        monkeypatch.setattr(running.scheduler, "submit", full)
        with pytest.raises(grpc.RpcError) as caught:
            client.infer.ModelInfer(infer_request())
        assert caught.value.code() is CODE.RESOURCE_EXHAUSTED
        trailers: Any = caught.value.trailing_metadata()
        assert dict(trailers)["grpc-retry-pushback-ms"] == "25"


@pytest.mark.usefixtures("front_end")
def test_the_time_of_a_request_counts_from_the_arrival_of_its_call(lab: Lab) -> None:
    with serving(lab, grpc_threads=1) as (_, client):
        lab.pause("cpu")
        calls = [client.send() for _ in range(3)]
        lab.wait_running("cpu")
        held_s = 0.2
        assert not threading.Event().wait(held_s)
        lab.resume()
        assert [status(call)[0] for call in calls] == [CODE.OK] * 3
        metrics = client.metrics()
    assert metrics["dnnserve_request_seconds_count"]["toy", "1"] == 3
    assert metrics["dnnserve_request_seconds_sum"]["toy", "1"] > 2.5 * held_s


@pytest.mark.usefixtures("front_end")
def test_a_call_is_a_line_of_the_access_log_which_a_client_cannot_forge(
    lab: Lab, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def records() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "dnnserve.access"]

    with caplog.at_level(logging.INFO, "dnnserve.access"), serving(lab, access_log=True) as (_, client):
        request = infer_request(1.0, 2, model="toy")
        request.id = "a\nb" + "x" * 1000
        request.parameters["priority"].uint64_param = 3
        client.infer.ModelInfer(request, timeout=PATIENCE_S)
        status(lambda: client.infer.ModelInfer(infer_request(model="nope")))
        wait_until(lambda: len(records()) == 2)
    first, second = (record.getMessage() for record in records())
    trace = tmp_path / "traffic.jsonl"
    trace.write_text("".join(JsonFormatter().format(record) + "\n" for record in records()))
    assert [json.loads(line)["id"] for line in trace.read_text().splitlines()] == ["a\nb" + "x" * 125, "value 1.0"]
    (arrival,) = read_trace(trace)
    assert arrival.slack_ns is not None
    assert 0 < arrival.slack_ns < (PATIENCE_S + 1) * 1e9  # which gRPC rounds up to some digits
    assert (arrival.at_ns, arrival.model.name, arrival.rows, arrival.priority) == (0, "toy", 2, 3)
    assert re.fullmatch(r"ipv\d:\S+ ModelInfer toy/1 id='a\\nbx{77}\.\.\.' OK \d+\.\d{3} ms", first)
    assert re.search(r" ModelInfer - id='value 1\.0' NOT_FOUND \d+\.\d{3} ms: model 'nope' is not loaded", second)


def png(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.usefixtures("front_end")
def test_images_beyond_the_budget_of_a_request_are_refused_by_their_headers(lab: Lab) -> None:
    def classify(*images: bytes) -> tuple[grpc.StatusCode, str]:
        request = classifier.ClassifyRequest(model_name="toy", images=images)
        return status(lambda: client.classifier.Classify(request, timeout=PATIENCE_S))

    with serving(lab, max_request_megapixels=0.005) as (_, client):
        assert classify(png(50, 50), png(50, 50)) == (CODE.OK, "")
        code, message = classify(png(50, 50), png(50, 51))
    assert code is CODE.INVALID_ARGUMENT
    assert "5050 pixels; at most 5000" in message
    assert "--max-request-megapixels" in message


@pytest.mark.usefixtures("front_end")
def test_a_large_message_and_a_compressed_one_come_through(lab: Lab) -> None:
    with serving(lab, specs=(make_spec(max_batch_rows=4096),), max_message_mib=1) as (_, client):
        assert scores(client.send(3.0, 4000).result(PATIENCE_S))[0] == [3.0, 6.0, 9.0]
        answer = client.infer.ModelInfer(infer_request(5.0, 1000), compression=grpc.Compression.Gzip)
    assert scores(answer)[0] == [5.0, 10.0, 15.0]


def test_the_lane_is_tried_before_it_is_used(lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    assert lane.probe() is None
    monkeypatch.setattr(lane, "cygrpc", None)
    reason = lane.probe()
    assert reason is not None
    assert f"grpcio {grpc.__version__} does not carry the fast lane" in reason
    with serving(lab, front_end="auto") as (_, client):
        assert status(client.send())[0] is CODE.OK
    assert any("goes through" in text or "go through grpcio's public server" in text for text in caplog.messages)
    with pytest.raises(StartError, match="use --front-end public"):
        Server(make_config(front_end="fast"), ("cpu",), (make_spec(),), lab.open_host)


def test_a_handler_that_fails_ends_its_call_and_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(server, "classifier_methods", lambda service: {**classifier_methods(service), CLASSIFY: fail})
    with serving(lab, front_end="fast") as (_, client):
        call = client.classifier.Classify.future(classifier.ClassifyRequest(), timeout=PATIENCE_S)
        assert status(call) == (CODE.INTERNAL, "internal error; the server's log has the cause")
        assert status(client.send())[0] is CODE.OK


@pytest.mark.usefixtures("front_end")
def test_a_lame_duck_serves_and_says_that_it_does_not(lab: Lab) -> None:
    with serving(lab, lame_duck_seconds=10 * PATIENCE_S) as (running, client):
        running.request_stop()
        stopper = threading.Thread(target=running.wait)
        stopper.start()
        wait_until(lambda: not running.ready)
        wait_until(lambda: client.health_of() == "NOT_SERVING")
        assert client.page("/readyz")[0] == 503
        assert not client.infer.ServerReady(inference.ServerReadyRequest()).ready
        assert scores(client.send(2.0).result(PATIENCE_S)) == [[2.0, 4.0, 6.0]]
        watch = client.health.Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        running.request_stop()  # a second time: no waiting
        stopper.join(PATIENCE_S)
        assert not stopper.is_alive()


@pytest.mark.parametrize("benchmark", [core_client, frame_client], ids=lambda module: module.__name__)
def test_the_benchmarks_clients_send_at_given_moments_and_count_what_came_in_time(lab: Lab, benchmark: Any) -> None:
    with serving(lab) as (server, _):
        calls = [(0.0, None), (0.01, PATIENCE_S), (0.02, 1e-6), (0.02, PATIENCE_S)]
        taken = benchmark.send_at(server.addresses.grpc, INFER, infer_request().SerializeToString(), 2, calls)
        assert (len(taken.seconds), taken.in_time, taken.failed) == (3, 3, 1)


@pytest.mark.parametrize("benchmark", [core_client, frame_client], ids=lambda module: module.__name__)
def test_the_benchmarks_clients_keep_calls_in_flight_for_a_while(lab: Lab, benchmark: Any) -> None:
    with serving(lab) as (server, client):
        message = infer_request(2.0).SerializeToString()
        taken = benchmark.keep_in_flight(server.addresses.grpc, INFER, message, 2, 5, 0.1)
        assert (taken.failed, taken.in_time) == (0, len(taken.seconds))
        assert len(taken.seconds) >= 5
        assert client.metrics()["dnnserve_requests_total"]["ModelInfer", "toy", "OK", "1"] == len(taken.seconds)


def test_the_frame_client_gives_up_calls_whose_deadlines_pass_and_waits_for_room_to_send(lab: Lab) -> None:
    with serving(lab, max_queue_requests=10_000) as (server, client):
        lab.pause("cpu")
        message = infer_request(1.0, 100).SerializeToString()  # more rows than a batch has: refused, once they are read
        calls = [(0.0, PATIENCE_S)] * 200  # several windows of a connection
        taken = frame_client.send_at(server.addresses.grpc, INFER, message, 1, calls)
        assert (taken.failed, len(taken.missed)) == (200, 200)
        taken = frame_client.send_at(server.addresses.grpc, INFER, infer_request().SerializeToString(), 1, [(0.0, 0.1)])
        assert (taken.failed, taken.seconds) == (1, [])
        ended = "ModelInfer", "toy", "CANCELLED", "1"
        wait_until(
            lambda: (
                sum(
                    client.metrics()["dnnserve_requests_total"].get((*ended[:2], code, "1"), 0.0)
                    for code in ("CANCELLED", "DEADLINE_EXCEEDED")
                )
                == 1
            )
        )
        lab.resume()
