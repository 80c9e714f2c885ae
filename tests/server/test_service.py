"""The services over real gRPC, through both front ends, with fake devices behind them."""

from __future__ import annotations

import gc
import json
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from dnnserve.app import Server
from dnnserve.metrics import Metrics
from dnnserve.statistics import Statistics
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dnncore.errors import DeviceFaultError
from dnncore.preprocessing import Preprocessing
from tests.server.fakes import PATIENCE_S, Lab, make_rows, make_spec, wait_until
from tests.server.serving import Client, front_end, infer_request, scores, serving, status

CODE = grpc.StatusCode

__all__ = ["front_end"]
pytestmark = pytest.mark.usefixtures("front_end")


def depth(server: Server) -> int:
    return sum(server.scheduler.queue_depths().values())


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def served(lab: Lab) -> Iterator[tuple[Server, Client]]:
    specs = (make_spec(), make_spec(version=3), make_spec("other", 2))
    with serving(lab, specs=specs, max_message_mib=1) as both:
        yield both


@pytest.fixture
def client(served: tuple[Server, Client]) -> Client:
    return served[1]


def test_the_server_describes_itself(client: Client) -> None:
    assert client.infer.ServerLive(inference.ServerLiveRequest()).live
    assert client.infer.ServerReady(inference.ServerReadyRequest()).ready
    metadata = client.infer.ServerMetadata(inference.ServerMetadataRequest())
    assert metadata.name == "dnnserve"
    assert {"classification", "statistics", "model_configuration"} <= set(metadata.extensions)


def test_a_model_describes_itself_in_both_protocols(client: Client) -> None:
    assert client.infer.ModelReady(inference.ModelReadyRequest(name="toy")).ready
    metadata = client.infer.ModelMetadata(inference.ModelMetadataRequest(name="toy", version="1"))
    assert list(metadata.versions) == ["1", "3"]
    assert (metadata.inputs[0].name, list(metadata.inputs[0].shape)) == ("data", [-1, 3, 2, 4])
    assert (metadata.outputs[0].name, list(metadata.outputs[0].shape)) == ("scores", [-1, 3])
    config = client.infer.ModelConfig(inference.ModelConfigRequest(name="toy")).config
    assert (config.max_batch_size, list(config.input[0].dims), config.input[0].format) == (8, [3, 2, 4], 2)
    model = client.classifier.GetModel(classifier.GetModelRequest(model_name="toy"))
    assert (model.model_version, list(model.versions), list(model.labels)) == ("3", ["1", "3"], ["ant", "bee", "cat"])
    assert (list(model.input_shape), model.max_batch_size) == ([3, 2, 4], 8)
    assert Preprocessing.from_dict(json.loads(model.preprocessing_json)).height == 2


@pytest.mark.parametrize(("asked", "answered"), [("", "3"), ("1", "1"), ("3", "3")])
def test_the_latest_version_answers_unless_another_is_named(client: Client, asked: str, answered: str) -> None:
    response = client.infer.ModelInfer(infer_request(2.0, version=asked))
    assert (response.model_version, response.id, scores(response)) == (answered, "value 2.0", [[2.0, 4.0, 6.0]])


def test_classify_answers_pixels_with_labels(client: Client) -> None:
    tensor = classifier.Tensor(datatype="FP32", shape=[1, 3, 2, 4], contents=make_rows(0.5).tobytes())
    response = client.classifier.Classify(classifier.ClassifyRequest(model_name="toy", tensor=tensor, top_k=2))
    assert [(label.name, label.probability) for label in response.classifications[0].labels] == [
        ("cat", 1.5),
        ("bee", 1.0),
    ]


def bad_classify(client: Client) -> object:
    return client.classifier.Classify(classifier.ClassifyRequest(model_name="toy", images=[b"junk"]))


REFUSALS = {
    "unknown model": (lambda c: c.infer.ModelInfer(infer_request(model="nope")), CODE.NOT_FOUND, "'nope'.*'toy'"),
    "unknown version": (lambda c: c.infer.ModelInfer(infer_request(version="2")), CODE.NOT_FOUND, "version 2.*1, 3"),
    "no version": (lambda c: c.infer.ModelInfer(infer_request(version="x")), CODE.INVALID_ARGUMENT, "positive integer"),
    "version 0": (lambda c: c.infer.ModelInfer(infer_request(version="0")), CODE.INVALID_ARGUMENT, "positive integer"),
    "no model": (lambda c: c.infer.ModelInfer(infer_request(model="")), CODE.INVALID_ARGUMENT, "empty"),
    "long name": (lambda c: c.infer.ModelInfer(infer_request(model="x" * 9999)), CODE.NOT_FOUND, r"x\.\.\."),
    "too many rows": (lambda c: c.infer.ModelInfer(infer_request(count=9)), CODE.INVALID_ARGUMENT, "9 rows.*1 to 8"),
    "no image": (bad_classify, CODE.INVALID_ARGUMENT, "image 0"),
    "message too large": (lambda c: c.infer.ModelInfer(infer_request(count=20_000)), CODE.RESOURCE_EXHAUSTED, "larger"),
    "metadata of none": (
        lambda c: c.infer.ModelMetadata(inference.ModelMetadataRequest(name="nope")),
        CODE.NOT_FOUND,
        "'nope'",
    ),
    "readiness of none": (
        lambda c: c.infer.ModelReady(inference.ModelReadyRequest(name="nope")),
        CODE.NOT_FOUND,
        "'nope'",
    ),
    "statistics of none": (
        lambda c: c.infer.ModelStatistics(inference.ModelStatisticsRequest(name="nope")),
        CODE.NOT_FOUND,
        "'nope'",
    ),
}


@pytest.mark.parametrize(("call", "code", "message"), REFUSALS.values(), ids=REFUSALS)
def test_a_bad_request_is_refused_and_the_server_goes_on(
    client: Client, call: object, code: CODE, message: str
) -> None:
    assert callable(call)
    with pytest.raises(grpc.RpcError, match=f"(?s){message}") as caught:
        call(client)
    assert caught.value.code() is code
    assert scores(client.send(2.0).result()) == [[2.0, 4.0, 6.0]]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("inference.GRPCInferenceService/ModelInfer", "5 bytes are no inference.ModelInferRequest"),
        ("dnnapi.v1.ClassifierService/Classify", "5 bytes are no dnnapi.v1.ClassifyRequest"),
        ("inference.GRPCInferenceService/ModelMetadata", "5 bytes are no inference.ModelMetadataRequest"),
        ("grpc.health.v1.Health/Check", "no grpc.health.v1.HealthCheckRequest"),
    ],
)
def test_garbage_on_the_wire_is_refused_and_the_server_goes_on(client: Client, path: str, message: str) -> None:
    method = client.channel.unary_unary(f"/{path}", None, None)
    code, text = status(lambda: method(b"\xff\xff\xff\xff\xff", timeout=PATIENCE_S))
    assert code is CODE.INVALID_ARGUMENT
    assert message in text
    assert status(client.send())[0] is CODE.OK


def test_streams_of_garbage_are_refused_too(client: Client) -> None:
    watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)
    describe = client.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", None, None
    )
    for call in (watch(b"\xff", timeout=PATIENCE_S), describe(iter([b"\xff"]), timeout=PATIENCE_S)):
        assert status(lambda call=call: next(call))[0] is CODE.INVALID_ARGUMENT


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def send_garbage(client: Client, count: int) -> None:
    """Messages that are not protobuf, dealt to methods of all kinds; each ends its call, but for those of an inference stream."""
    services = (
        *("inference.GRPCInferenceService/ModelInfer", "dnnapi.v1.ClassifierService/Classify"),
        *("inference.GRPCInferenceService/ModelMetadata", "grpc.health.v1.Health/Check"),
    )
    unary = [client.channel.unary_unary(f"/{path}", None, None) for path in services]
    streams = [
        client.channel.stream_stream(f"/{path}", None, None)
        for path in ("grpc.health.v1.Health/Watch", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    ]
    for _ in range(count // 10):
        calls = [method.future(b"\xff" * 5, timeout=PATIENCE_S) for method in unary for _ in range(2)]
        assert {status(call)[0] for call in calls} == {CODE.INVALID_ARGUMENT}
        for stream in streams:
            assert (
                status(lambda stream=stream: list(stream(iter([b"\xff"]), timeout=PATIENCE_S)))[0]
                is CODE.INVALID_ARGUMENT
            )


def test_messages_that_are_not_protobuf_leave_nothing_in_memory(client: Client) -> None:
    send_garbage(client, 1000)  # what the first ones take stays: threads, pools, arenas
    before = resident_bytes()
    send_garbage(client, 5000)
    # In grpcio's deserializer each leaves some 19.6 kB. With that for Watch alone it was 7.4 to 8.7 MB, and 0.7 without.
    assert resident_bytes() - before < 5_000_000


def test_a_method_that_does_not_exist_is_unimplemented(client: Client) -> None:
    method = client.channel.unary_unary("/inference.GRPCInferenceService/SystemSharedMemoryStatus", None, None)
    assert status(lambda: method(b"", timeout=PATIENCE_S))[0] is CODE.UNIMPLEMENTED


def test_a_call_without_a_request_is_unimplemented(client: Client) -> None:
    method = client.channel.stream_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
    code, text = status(lambda: method(iter(()), timeout=PATIENCE_S))
    assert code is CODE.UNIMPLEMENTED
    assert "exactly one request message" in text


def test_a_failed_batch_is_internal_and_tells_nothing_of_the_inside(lab: Lab, client: Client) -> None:
    lab.fail_next("cpu", RuntimeError("secret"))
    code, message = status(client.send())
    assert code is CODE.INTERNAL
    assert "secret" not in message
    assert status(client.send())[0] is CODE.OK


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


def test_two_devices_share_one_queue(lab: Lab) -> None:
    with serving(lab, ("cuda:0", "cuda:1")) as (server, client):
        for device in ("cuda:0", "cuda:1"):
            lab.pause(device)
        calls = [client.send(1.0, 8), client.send(2.0, 8)]
        for device in ("cuda:0", "cuda:1"):
            lab.wait_running(device)
        lab.resume()
        assert [scores(call.result(PATIENCE_S))[7] for call in calls] == [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]
        assert server.device_labels == ("cuda:0", "cuda:1")


def test_the_smallest_device_bounds_the_batch_of_all() -> None:
    with serving(Lab({"cuda:1": 2}), ("cuda:0", "cuda:1")) as (_, client):
        assert client.infer.ModelConfig(inference.ModelConfigRequest(name="toy")).config.max_batch_size == 2
        assert status(client.send(1.0, 3))[0] is CODE.INVALID_ARGUMENT


def test_a_lost_device_shows_in_metrics_and_the_server_stays_ready_while_one_is_left(lab: Lab) -> None:
    with serving(lab, ("cpu", "cpu")) as (_, client):
        lab.fail_next("cpu", DeviceFaultError("an illegal memory access"))
        assert status(client.send())[0] is CODE.OK
        assert sorted(client.metrics()["dnnserve_device_healthy"].values()) == [0.0, 1.0]
        assert client.health_of() == "SERVING"
        assert status(client.send())[0] is CODE.OK
        lab.fail_next("cpu", DeviceFaultError("an illegal memory access"))
        assert status(client.send())[0] is CODE.UNAVAILABLE
        assert client.health_of() == client.health_of("inference.GRPCInferenceService") == "NOT_SERVING"
        assert client.page("/readyz")[0] == 503
        assert client.page("/healthz")[0] == 200
        assert not client.infer.ServerReady(inference.ServerReadyRequest()).ready
        assert not client.infer.ModelReady(inference.ModelReadyRequest(name="toy")).ready
        code, message = status(client.send())
        assert code is CODE.UNAVAILABLE
        assert "no healthy device" in message


def test_statistics_count_requests_rows_and_batches(lab: Lab) -> None:
    with serving(lab, hold_until_requests=2) as (_, client):
        calls = [client.send(1.0, 3), client.send(2.0, 1)]
        assert [status(call)[0] for call in calls] == [CODE.OK, CODE.OK]
        assert status(client.send(1.0, 1))[0] is CODE.OK
        assert status(client.send(1.0, 9))[0] is CODE.INVALID_ARGUMENT
        lab.fail_next("cpu", RuntimeError("bad luck"))
        assert status(client.send())[0] is CODE.INTERNAL
        (model,) = client.infer.ModelStatistics(inference.ModelStatisticsRequest(name="toy")).model_stats
        stats = model.inference_stats
        assert (model.name, model.version, model.inference_count, model.execution_count) == ("toy", "1", 5, 2)
        assert (stats.success.count, stats.fail.count, stats.queue.count, stats.compute_infer.count) == (3, 2, 3, 3)
        assert stats.success.ns > stats.compute_infer.ns > 0
        assert [(batch.batch_size, batch.compute_infer.count) for batch in model.batch_stats] == [(1, 1), (4, 1)]
        assert model.last_inference > 1_600_000_000_000
        metrics = client.metrics()
        key = ("toy", "1")
        assert metrics["nv_inference_request_success_total"][key] == 3  # the parser adds _total to a counter's name
        assert metrics["nv_inference_count_total"][key] == 5
        assert metrics["nv_inference_exec_count_total"][key] == 2
        failures = {labels[1]: value for labels, value in metrics["nv_inference_request_failure_total"].items()}
        assert failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 1, "OTHER": 1}


def test_statistics_of_all_models_come_without_a_name(client: Client) -> None:
    def names(**request: str) -> list[tuple[str, str]]:
        response = client.infer.ModelStatistics(inference.ModelStatisticsRequest(**request))
        return [(model.name, model.version) for model in response.model_stats]

    assert names() == [("other", "2"), ("toy", "1"), ("toy", "3")]
    assert names(name="toy") == [("toy", "1"), ("toy", "3")]
    assert names(name="toy", version="3") == [("toy", "3")]


def test_metrics_are_histograms_in_seconds_and_counters_by_status(lab: Lab) -> None:
    with serving(lab) as (_, client):
        assert status(client.send(1.0, 3))[0] is CODE.OK
        assert status(lambda: client.infer.ModelInfer(infer_request(model="made-up")))[0] is CODE.NOT_FOUND
        predicted = (
            "cpu",
            "toy",
            "3",
            "1",
        )  # after one batch of three rows, which is measured once it has been delivered
        wait_until(lambda: client.metrics()["dnnserve_predicted_batch_seconds"][predicted] > 0)
        metrics = client.metrics()
        key = ("toy", "1")
        for name in ("queue_seconds", "compute_seconds", "request_seconds", "batch_rows"):
            assert metrics[f"dnnserve_{name}_count"][key] == 1
        assert metrics["dnnserve_batch_rows_sum"][key] == 3
        assert 0 < metrics["dnnserve_request_seconds_sum"][key] < PATIENCE_S
        assert metrics["dnnserve_request_seconds_bucket"]["0.0005", *key] <= 1
        assert metrics["dnnserve_requests_total"]["ModelInfer", "toy", "OK", "1"] == 1
        assert metrics["dnnserve_requests_total"]["ModelInfer", "", "NOT_FOUND", ""] == 1
        assert metrics["dnnserve_queue_depth"][key] == metrics["dnnserve_in_flight_requests"][()] == 0
        assert metrics["dnnserve_device_busy_seconds_total"]["cpu",] > 0
        assert metrics["dnnserve_device_healthy"]["cpu",] == 1
        assert metrics["dnnserve_deadline_slack_seconds_count"][key] == 1
        assert metrics["dnnserve_batch_cost_ratio_count"][key] == 0  # of which nothing was expected before
        assert metrics["dnnserve_dropped_requests_total"]["toy", "expired", "1"] == 0
        assert metrics["dnnserve_repeated_requests_total"][key] == 0
        assert metrics["process_resident_memory_bytes"][()] > 0


def test_triton_names_stand_in_the_text_as_triton_writes_them(lab: Lab) -> None:
    with serving(lab) as (_, client):
        client.send(1.0, 2).result(PATIENCE_S)
        lines = client.page("/metrics")[1].splitlines()
    assert "# TYPE nv_inference_count counter" in lines
    assert 'nv_inference_count{model="toy",version="1"} 2' in lines
    assert 'nv_inference_pending_request_count{model="toy",version="1"} 0' in lines
    assert "made-up" not in "".join(lines)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_complains_of_nothing_but_the_names_that_triton_forces(lab: Lab) -> None:
    with serving(lab) as (_, client):
        client.send(1.0, 2).result(PATIENCE_S)
        page = client.page("/metrics")[1]
    result = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    complaints = result.stderr.splitlines()
    assert result.returncode == 3, complaints  # 3: the text can be read, there is lint
    assert {line.split("_")[0] for line in complaints} == {"nv"}, complaints


def test_other_pages_do_not_exist(client: Client) -> None:
    assert client.page("/")[0] == 404
    assert client.page("/readyz?verbose")[0] == 200


def test_health_knows_every_service_and_reflection_lists_them(client: Client) -> None:
    for service in ("", "inference.GRPCInferenceService", "dnnapi.v1.ClassifierService"):
        assert client.health_of(service) == "SERVING"
    with pytest.raises(grpc.RpcError) as caught:
        client.health.Check(health_pb2.HealthCheckRequest(service="nope"))
    assert caught.value.code() is CODE.NOT_FOUND
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    (response,) = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = {service.name for service in response.list_services_response.service}
    assert {"inference.GRPCInferenceService", "dnnapi.v1.ClassifierService", "grpc.health.v1.Health"} <= names


def test_idle_reflection_streams_keep_nobody_from_an_answer(lab: Lab) -> None:
    with serving(lab, grpc_threads=2) as (_, client):
        stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        hold = threading.Event()

        def silent() -> Iterator[Any]:
            hold.wait(4 * PATIENCE_S)
            yield from ()

        streams = [stub.ServerReflectionInfo(silent()) for _ in range(6)]
        try:
            assert scores(client.send(7.0).result(PATIENCE_S))[0][0] == 7.0
            assert client.health_of() == "SERVING"
        finally:
            for stream in streams:
                stream.cancel()
            hold.set()


def test_many_clients_each_get_their_own_answer(lab: Lab) -> None:
    with serving(lab, ("cpu", "cpu")) as (_, client):
        values = np.random.default_rng(3).integers(1, 1000, 200)
        calls = [client.send(float(value), 1 + int(value) % 3) for value in values]
        for value, call in zip(values, calls, strict=True):
            rows = scores(call.result(PATIENCE_S))
            assert rows == [[value, 2.0 * value, 3.0 * value]] * (1 + int(value) % 3)
    assert max(rows for _, rows in lab.batches) <= 8


def test_calls_that_cannot_be_counted_are_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a counter overflowed")

    monkeypatch.setattr(Metrics, "record_calls", fail)
    monkeypatch.setattr(Statistics, "record_refusal", fail)
    with serving(Lab()) as (_, client):
        assert scores(client.infer.ModelInfer(infer_request(2.0), timeout=PATIENCE_S)) == [[2.0, 4.0, 6.0]]
        wrong = infer_request()
        wrong.inputs[0].name = "dada"
        for bad, code in ((infer_request(model="nope"), CODE.NOT_FOUND), (wrong, CODE.INVALID_ARGUMENT)):
            assert status(client.infer.ModelInfer.future(bad, timeout=PATIENCE_S))[0] is code
    assert "could not be counted" in caplog.text
