"""What requests are answered by the versions and devices that there are, one or many at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dnnapi.v1 import classifier_pb2 as classifier
from grpc_reflection.v1alpha import reflection_pb2_grpc

from tests.server.fakes import PATIENCE_S, Lab, make_rows
from tests.server.serving import Client, infer_request, scores, serving

pytestmark = pytest.mark.usefixtures("front_end")


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


def test_many_clients_each_get_their_own_answer(lab: Lab) -> None:
    with serving(lab, ("cpu", "cpu")) as (_, client):
        values = np.random.default_rng(3).integers(1, 1000, 200)
        calls = [client.send(float(value), 1 + int(value) % 3) for value in values]
        for value, call in zip(values, calls, strict=True):
            rows = scores(call.result(PATIENCE_S))
            assert rows == [[value, 2.0 * value, 3.0 * value]] * (1 + int(value) % 3)
    assert max(rows for _, rows in lab.batches) <= 8


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
