"""NVIDIA's perf_analyzer against `dnnserve`: all that it asks is answered, before its requests, between and after them.

`make ready` puts the program of tritonclient 2.51 under .build; DNN_PERF_ANALYZER names another. Nothing is said of speed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import onnx
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.inference import grpc_service_pb2_grpc as inference_grpc
from onnx import TensorProto, helper

from dnncore.importers.onnx import import_onnx
from dnncore.nn import Package
from tests.server.fakes import PATIENCE_S
from tests.server.packages import make_repository
from tests.server.test_command_line import started

_MADE = Path(__file__).parents[2] / ".build" / "perf_analyzer-2.51.0"
REQUESTS = 100
ZEROS = ("--input-data", "zero")
"""Its random numbers overflow, and it cannot write what comes of them as JSON."""

OVER_GRPC = ("-i", "grpc")
OVER_HTTP = ("-i", "http")


@dataclass(frozen=True)
class Bench:
    """The program, and a server for it.

    Args:
        program: Its path.
        environment: That it runs in.
        ready: What the server says of itself.
        folder: For what the program writes.
    """

    program: Path
    environment: dict[str, str]
    ready: dict[str, Any]
    folder: Path

    def ask(self, model: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it against the server."""
        address = str(self.ready["http" if "http" in arguments else "grpc"]).removeprefix("http://")
        command = [str(self.program), "-m", model, "-u", address, "--request-count", str(REQUESTS), *ZEROS, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=self.environment, cwd=self.folder, check=False
        )

    def successes_and_failures(self, model: str) -> tuple[int, int]:
        """Requests that the server has counted so far."""
        with grpc.insecure_channel(str(self.ready["grpc"])) as channel:
            stub = inference_grpc.GRPCInferenceServiceStub(channel)
            request = inference.ModelStatisticsRequest(name=model)
            (found,) = stub.ModelStatistics(request, timeout=PATIENCE_S).model_stats
        return found.inference_stats.success.count, found.inference_stats.fail.count


@pytest.fixture(scope="module")
def program() -> Path:
    named = os.environ.get("DNN_PERF_ANALYZER")
    path = Path(named) if named else _MADE / "bin" / "perf_analyzer"
    if not named and not path.exists():
        pytest.skip(
            "perf_analyzer is not there: `make ready` gets it for Linux on x86-64, or DNN_PERF_ANALYZER names it"
        )
    return path


@pytest.fixture(scope="module")
def bench(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    libraries = [str(_MADE / "nvidia" / "cuda_runtime" / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
    version = subprocess.run([program, "--version"], capture_output=True, text=True, env=environment, check=False)
    if "libb64" in version.stderr:
        pytest.skip(f"{version.stderr.strip()}: apt-get install libb64-0d")
    assert version.returncode == 0, version.stderr
    folder = tmp_path_factory.mktemp("perf_analyzer")
    repository = make_repository(folder / "models")
    save_pair(folder, repository / "pair" / "1")
    settings = ("--devices", "cpu", "--max-batch", 8, "--http-port", 0, "--shared-memory")
    with started(folder / "ready.json", "--model-repository", repository, *settings) as (_, ready):
        yield Bench(program, environment, ready, folder)


def save_pair(folder: Path, package: Path) -> None:
    """A net of two inputs and two outputs. All have an extent behind the batch: perf_analyzer has no tensors without one."""

    def tensors(**shapes: tuple[int, ...]) -> list[Any]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", *shape)) for name, shape in shapes.items()]

    nodes = [
        helper.make_node("Add", ["left", "right"], ["sum"]),
        helper.make_node("Mul", ["left", "right"], ["product"]),
    ]
    graph = helper.make_graph(nodes, "pair", tensors(left=(2, 3), right=(2, 3)), tensors(sum=(2, 3), product=(2, 3)))
    path = folder / "pair.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = import_onnx(path)
    Package("pair", model.graph, model.weights, None, None).save(package)


SHARED = ("--shared-memory", "system", "--output-shared-memory-size", "1024")
RUNS = {
    "grpc": ("digits", *OVER_GRPC, "-b", "3"),
    "grpc-stream": ("digits", *OVER_GRPC, "--streaming"),
    "grpc-rate-priority": (
        *("digits", *OVER_GRPC, "--request-rate-range", "100", "--request-distribution", "poisson"),
        *("-H", "dnn-priority:1", "--request-parameter", "priority:1:int"),
    ),
    "grpc-shared-memory": ("digits", *OVER_GRPC, *SHARED),
    "grpc-pair": ("pair", *OVER_GRPC, "--grpc-compression-algorithm", "gzip"),
    "http": ("digits", *OVER_HTTP, "-b", "3"),
    "http-json": ("pair", *OVER_HTTP, "--input-tensor-format", "json", "--output-tensor-format", "json"),
    "http-shared-memory": ("digits", *OVER_HTTP, *SHARED),
}


@pytest.mark.parametrize("run", RUNS)
def test_each_of_its_requests_is_answered_and_counted(bench: Bench, run: str) -> None:
    model, *arguments = RUNS[run]
    pace = () if "--request-rate-range" in arguments else ("--concurrency-range", "4")
    before = bench.successes_and_failures(model)
    exported = bench.folder / f"{run}.json"
    # With outputs in shared memory it left the file empty once in several runs, having ended well.
    export = () if "--shared-memory" in arguments else ("--profile-export-file", str(exported))
    result = bench.ask(model, *arguments, *pace, *export)
    assert result.returncode == 0, result.stdout + result.stderr
    if export:
        (experiment,) = json.loads(exported.read_text())["experiments"]
        assert len(experiment["requests"]) == REQUESTS
        assert all(len(request["response_timestamps"]) == 1 for request in experiment["requests"])
    after = bench.successes_and_failures(model)
    assert (after[0] - before[0], after[1] - before[1]) == (REQUESTS, 0)
    assert "Inference count:" in result.stdout, "it has read the server's statistics"


def test_it_finds_the_metrics_where_it_is_told_to(bench: Bench) -> None:
    metrics = ("--collect-metrics", "--metrics-url", str(bench.ready["metrics"]).removeprefix("http://"))
    result = bench.ask("digits", *OVER_GRPC, *metrics)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Server Prometheus Metrics" in result.stdout


def test_it_says_what_the_server_says_of_a_model_that_is_not_there(bench: Bench) -> None:
    result = bench.ask("nope", *OVER_GRPC)
    assert result.returncode != 0
    assert "model 'nope' is not loaded" in result.stdout + result.stderr
