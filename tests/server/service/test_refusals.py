"""What cannot be answered, by its request or by the device: the status says so, and the server goes on."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import grpc
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier

from tests.server.fakes import PATIENCE_S, Lab
from tests.server.serving import Client, infer_request, scores, status

CODE = grpc.StatusCode

pytestmark = pytest.mark.usefixtures("front_end")


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


MOST_GROWTH = 5_000_000
"""Bytes. In grpcio's deserializer each message leaves some 19.6 kB; with that for Watch alone it was 7.4 to 8.7 MB, and 0.7
without.
"""

ATTEMPTS = 3
"""What else this process does may take memory meanwhile, once 6 MB; what messages leave, they leave in every attempt."""


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
    for _ in range(count // (len(unary) + len(streams))):
        calls = [method.future(b"\xff" * 5, timeout=PATIENCE_S) for method in unary]
        assert {status(call)[0] for call in calls} == {CODE.INVALID_ARGUMENT}
        for stream in streams:
            assert (
                status(lambda stream=stream: list(stream(iter([b"\xff"]), timeout=PATIENCE_S)))[0]
                is CODE.INVALID_ARGUMENT
            )


def test_messages_that_are_not_protobuf_leave_nothing_in_memory(client: Client) -> None:
    send_garbage(client, 600)  # what the first ones take stays: threads, pools, arenas
    growths: list[int] = []
    while len(growths) < ATTEMPTS and min(growths, default=MOST_GROWTH) >= MOST_GROWTH:
        before = resident_bytes()
        send_garbage(client, 3000)  # 500 of each method, as that for Watch leaves the least
        growths.append(resident_bytes() - before)
    assert min(growths) < MOST_GROWTH, growths


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
