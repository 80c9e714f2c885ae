"""A server of real, small models on the CPU, whose repository changes while it runs."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.app import Server
from dnnserve.assembly import make_server
from dnnserve.config import ServerConfig

from tests.server.fakes import PATIENCE_S
from tests.server.packages import make_package, probabilities
from tests.server.serving import Client

ROWS = np.random.default_rng(3).normal(size=(1, 1, 8, 8)).astype(np.float32)


def expected(seed: int) -> np.ndarray:
    """What the version of a seed answers."""
    return probabilities(make_package(seed=seed), ROWS)


def add_version(root: Path, version: int, name: str = "digits") -> None:
    """Put a version, whose seed is its number, into the repository."""
    make_package(name, version).save(root / name / str(version))


class LiveClient(Client):
    """Asks the server as an operator would."""

    def infer_digits(self, version: str = "", name: str = "digits", timeout: float | None = PATIENCE_S) -> Any:
        request = inference.ModelInferRequest(model_name=name, model_version=version)
        request.inputs.add(name="data", datatype="FP32", shape=ROWS.shape)
        request.raw_input_contents.append(ROWS.tobytes())
        return self.infer.ModelInfer.future(request, timeout=timeout)

    def index(self, *, ready: bool = False) -> dict[tuple[str, str], tuple[str, str]]:
        """State and reason by model and version."""
        answer = self.infer.RepositoryIndex(inference.RepositoryIndexRequest(ready=ready), timeout=PATIENCE_S)
        return {(entry.name, entry.version): (entry.state, entry.reason) for entry in answer.models}

    def load(self, name: str) -> Any:
        return self.infer.RepositoryModelLoad.future(
            inference.RepositoryModelLoadRequest(model_name=name), timeout=PATIENCE_S
        )

    def unload(self, name: str) -> Any:
        return self.infer.RepositoryModelUnload.future(
            inference.RepositoryModelUnloadRequest(model_name=name), timeout=PATIENCE_S
        )

    def post(self, path: str, document: object = None) -> tuple[int, Any]:
        """Status and body of a POST."""
        connection = http.client.HTTPConnection(self.http_address, timeout=PATIENCE_S)
        connection.request("POST", path, None if document is None else json.dumps(document))
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, json.loads(body)


@contextmanager
def live(root: Path, **settings: Any) -> Iterator[tuple[Server, LiveClient]]:
    """Start a server over a repository."""
    defaults = {"grpc_port": 0, "metrics_port": 0, "http_port": 0, "devices": "cpu", "lame_duck_seconds": 0}
    config = ServerConfig(
        **{
            "model_repository": root,
            "warm_up_seconds": 0,
            "save_costs": False,
            "drain_seconds": 10,
            **defaults,
            **settings,
        }
    )
    server = make_server(config)
    server.start()
    with grpc.insecure_channel(server.addresses.grpc) as channel:
        try:
            yield server, LiveClient(server, channel)
        finally:
            assert server.drain()


class Load:
    """Clients that ask again as soon as they have an answer, each of which must be one of some version's, and whole."""

    def __init__(self, server: Server, clients: int) -> None:
        self._server = server
        self._stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask(self) -> None:
        right: dict[str, np.ndarray] = {}
        # A connection each, so that all front ends have some.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._server.addresses.grpc, options) as channel:
            client = LiveClient(self._server, channel)
            while not self._stop.is_set():
                try:
                    answer = client.infer_digits().result(PATIENCE_S)
                except grpc.RpcError as error:
                    self.errors.append(f"{error.code()}: {error.details()}")
                    continue
                version = answer.model_version
                if version not in right:
                    right[version] = expected(int(version))
                outputs = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(1, -1)
                if not np.allclose(outputs, right[version], rtol=1e-5, atol=1e-7):
                    self.errors.append(f"an answer of version {version} is not its own")
                self.answers[version] += 1
