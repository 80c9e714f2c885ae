"""What is counted: statistics over gRPC, and the operators' pages."""

from __future__ import annotations

import shutil
import subprocess

import grpc
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.metrics import Metrics
from dnnserve.statistics import Statistics

from dnncore.errors import DeviceFaultError
from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.serving import Client, infer_request, scores, serving, status

CODE = grpc.StatusCode

pytestmark = pytest.mark.usefixtures("front_end")


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
    with serving(lab, max_queue_requests=40) as (_, client):
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
        assert metrics["dnnserve_queue_limit"][key] == 40
        assert metrics["dnnserve_device_busy_seconds_total"]["cpu",] > 0
        assert metrics["dnnserve_device_input_bytes_total"] == {("cpu", "slot"): 3 * 3 * 2 * 4 * 4, ("cpu", "arena"): 0}
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
