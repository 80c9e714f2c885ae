"""The page on operating a server: what it has curl say to one is understood, as it stands there but for the port."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dnncore.nn import Package
from dnncore.nn.builder import NetBuilder
from dnncore.nn.graph import BATCH
from dnncore.preprocessing import Preprocessing
from tests.server.fakes import PATIENCE_S
from tests.server.lifecycle.live import live
from tests.server.packages import probabilities

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()
PIXELS = [0, 255, 128, 7]
SCALE = 1 / 255

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def tiny_package() -> Package:
    """Of images of 2 x 2 pixels in gray."""
    net = NetBuilder("tiny")
    x = net.flatten("flat", net.input("data", (BATCH, 1, 2, 2)))
    graph = net.build(net.inner_product("logits", x, 3))
    preprocessing = Preprocessing.squash("gray", 2, 2, SCALE, (0.0,), (1.0,))
    return Package("digits", graph, graph.initialize(1), preprocessing, ("zero", "one", "two"))


def commands(words: str) -> str:
    """The page's block of a shell's commands that has these words."""
    (block,) = (found for found in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if words in found)
    return "\n".join(line for line in block.splitlines() if not line.startswith("dnnserve"))


def said(address: str, script: str, *options: str) -> bytes:
    """What a server answers when a shell runs commands with curl in them."""
    curl = " ".join(("curl --silent --show-error --fail-with-body --max-time", str(PATIENCE_S), *options, "http://"))
    script = script.replace("curl http://", curl).replace("127.0.0.1:8000", address)
    result = subprocess.run(["sh", "-ec", script], capture_output=True, timeout=3 * PATIENCE_S, check=False)
    assert result.returncode == 0, (result.stdout, result.stderr)
    return result.stdout


@pytest.fixture(scope="module")
def package() -> Package:
    return tiny_package()


@contextmanager
def serving(package: Package, root: Path) -> Iterator[str]:
    """The HTTP address of a server of this package, whose clients may load and unload it."""
    package.save(root / "digits" / "1")
    with live(root, repository_mode="explicit", load_models=("digits",)) as (_, client):
        yield client.http_address


@pytest.fixture(scope="module")
def address(package: Package, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(package, tmp_path_factory.mktemp("models")) as address:
        yield address


@pytest.fixture(scope="module")
def expected(package: Package) -> np.ndarray:
    return probabilities(package, np.array(PIXELS, np.float32).reshape(1, 1, 2, 2) * np.float32(SCALE))


@pytest.mark.parametrize("words", ['"data": [0, 255', "binary_data_size"], ids=["as JSON", "as bytes"])
def test_pixels_are_answered_with_probabilities(address: str, expected: np.ndarray, words: str) -> None:
    answer = json.loads(said(address, commands(words)))
    (output,) = answer["outputs"]
    assert (answer["model_name"], output["datatype"], output["shape"]) == ("digits", "FP32", [1, 3])
    np.testing.assert_allclose(output["data"], expected.ravel(), rtol=1e-5)


def test_outputs_come_as_bytes_where_that_is_asked_for(address: str, expected: np.ndarray, tmp_path: Path) -> None:
    asking = commands("binary_data_size").replace("4}}]}", '4}}], "parameters": {"binary_data_output": true}}')
    assert asking != commands("binary_data_size")
    body = said(address, asking, f"--dump-header {tmp_path / 'headers'}")
    (length,) = re.findall(r"(?i)^inference-header-content-length: (\d+)\s*$", (tmp_path / "headers").read_text(), re.M)
    (output,) = json.loads(body[: int(length)])["outputs"]
    assert output["parameters"]["binary_data_size"] == len(body) - int(length) == 12
    np.testing.assert_allclose(np.frombuffer(body[int(length) :], "<f4"), expected.ravel(), rtol=1e-5)


def test_models_are_listed_loaded_and_unloaded(package: Package, tmp_path: Path) -> None:
    list_load_unload = commands("/v2/repository/index").replace("curl -X POST http://", "curl http://")
    assert list_load_unload.count("curl http://") == 3
    with serving(package, tmp_path) as address:
        first, again = (
            said(address, list_load_unload, "--request POST", "--write-out '\\n'").decode().splitlines()
            for _ in range(2)
        )
    ready = {"name": "digits", "version": "1", "state": "READY", "reason": ""}
    gone = {"name": "digits", "version": "1", "state": "UNAVAILABLE", "reason": "not loaded"}
    assert [json.loads(index) for index in (first[0], again[0])] == [[ready], [gone]]
