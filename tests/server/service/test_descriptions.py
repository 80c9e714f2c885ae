"""What a server says of itself and of its models."""

from __future__ import annotations

import json

import grpc
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dnncore.preprocessing import Preprocessing
from tests.server.fakes import Lab
from tests.server.serving import Client, serving, status

CODE = grpc.StatusCode

pytestmark = pytest.mark.usefixtures("front_end")


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


def test_the_smallest_device_bounds_the_batch_of_all() -> None:
    with serving(Lab({"cuda:1": 2}), ("cuda:0", "cuda:1")) as (_, client):
        assert client.infer.ModelConfig(inference.ModelConfigRequest(name="toy")).config.max_batch_size == 2
        assert status(client.send(1.0, 3))[0] is CODE.INVALID_ARGUMENT


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
