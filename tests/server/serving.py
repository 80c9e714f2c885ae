"""A whole server in this process, over real gRPC on loopback, with fake devices."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.inference import grpc_service_pb2_grpc as inference_grpc
from dnnapi.v1 import classifier_pb2_grpc as classifier_grpc
from dnnserve.app import Server
from dnnserve.catalog import ModelSpec
from dnnserve.config import ServerConfig
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.server.fakes import PATIENCE_S, Lab, make_rows, make_spec


class FrontEnd:
    """Which front end servers get that are not told which; the fixture `front_end` runs a module's tests over both."""

    default = "fast"


@pytest.fixture(params=["fast", "public"])
def front_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(FrontEnd, "default", request.param)
    return str(request.param)


def make_config(**settings: Any) -> ServerConfig:
    defaults = {"grpc_port": 0, "metrics_port": 0, "front_end": FrontEnd.default, "lame_duck_seconds": 0}
    return ServerConfig(
        **{
            "model": Path("unused"),
            "drain_seconds": 10,
            "warm_up_seconds": 0,
            "save_costs": False,
            **defaults,
            **settings,
        }
    )


def infer_request(value: float = 1.0, count: int = 1, model: str = "toy", version: str = "") -> Any:
    rows = make_rows(value, count)
    request = inference.ModelInferRequest(model_name=model, model_version=version, id=f"value {value}")
    request.inputs.add(name="data", datatype="FP32", shape=rows.shape)
    request.raw_input_contents.append(rows.tobytes())
    return request


class Client:
    """Stubs of every service, and the pages over HTTP."""

    def __init__(self, server: Server, channel: grpc.Channel) -> None:
        self.channel = channel
        self.infer = inference_grpc.GRPCInferenceServiceStub(channel)
        self.classifier = classifier_grpc.ClassifierServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)
        self._metrics_url = server.addresses.metrics
        self.http_address = (server.addresses.http or "").removeprefix("http://")

    def send(self, value: float = 1.0, count: int = 1, timeout: float = PATIENCE_S) -> Any:
        return self.infer.ModelInfer.future(infer_request(value, count), timeout=timeout)

    def health_of(self, service: str = "") -> str:
        status = self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S).status
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))

    def page(self, path: str) -> tuple[int, str]:
        url = self._metrics_url.removesuffix("/metrics") + path
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Values by name, then by the labels' values in the order of their names."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.page("/metrics")[1]):
            for sample in family.samples:
                labels = tuple(value for _, value in sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
        return found


@contextmanager
def connected_anew(server: Server) -> Iterator[Client]:
    """A client on a connection of its own. Once a front end is dead, a call on an older channel may still be put on its
    broken connection, and is answered UNAVAILABLE even where it waits for a ready one."""
    with grpc.insecure_channel(server.addresses.grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield Client(server, channel)


@contextmanager
def serving(
    lab: Lab, devices: Sequence[str] = ("cpu",), specs: Sequence[ModelSpec] = (make_spec(),), **settings: Any
) -> Iterator[tuple[Server, Client]]:
    """Start a server, and stop it if the test has not."""
    server = Server(make_config(**settings), devices, specs, lab.open_host)
    server.start()
    with grpc.insecure_channel(server.addresses.grpc) as channel:
        try:
            yield server, Client(server, channel)
        finally:
            lab.resume()
            if not server._stop.is_set():
                assert server.drain()
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("dnnserve-cpu", "dnnserve-cuda"))
    ]


def scores(response: Any) -> list[list[float]]:
    values: list[list[float]] = (
        np.frombuffer(response.raw_output_contents[0], "<f4").reshape(list(response.outputs[0].shape)).tolist()
    )
    return values


def status(call: Any) -> tuple[grpc.StatusCode, str]:
    """Status of a finished future or of a callable that fails."""
    try:
        call() if callable(call) and not isinstance(call, grpc.Future) else call.result(timeout=PATIENCE_S)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""
