"""Classes that a device ranks: what comes to the host of a batch, and that answers are those of a host that ranks whole rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from dnnserve.config import ModelConfig
from dnnserve.engine.net import NetHost
from dnnserve.envelope import ModelKey, OwnBlock
from dnnserve.front.model_info import metadata_message
from dnnserve.front.parameters import numbers_of
from dnnserve.front.requests import parse_classify, parse_infer
from dnnserve.front.responses import classify_response, infer_response, top_k
from dnnserve.lifecycle.reading import read_model

from dnncore.nn import Executor, Package, zoo
from dnncore.preprocessing import Preprocessing
from tests.conftest import DEVICES
from tests.server.fakes import run_blocks
from tests.server.packages import make_package, probabilities
from tests.server.serving import make_config

CLASSES = 40
KEY = ModelKey("digits", 1)
ROWS = np.random.default_rng(3).normal(size=(3, 1, 8, 8)).astype(np.float32)


def package_of(classes: int) -> Package:
    net = zoo.lenet(classes, (1, 8, 8))
    preprocessing = Preprocessing.squash("gray", 8, 8, 1 / 16, (0.25,), (0.5,))
    weights = {name: array * 0.2 for name, array in net.initialize(5).items()}
    return Package("digits", net, weights, preprocessing, tuple(f"class {number}" for number in range(classes)))


def settings(rows: int, precision: str = "fp32") -> ModelConfig:
    return make_config(max_batch_rows=rows, precision=precision).of_model("digits")


def classify(rows: np.ndarray, count: int) -> bytes:
    tensor = classifier.Tensor(datatype="FP32", shape=rows.shape, contents=rows.tobytes())
    return classifier.ClassifyRequest(model_name="digits", tensor=tensor, top_k=count).SerializeToString()


def infer(rows: np.ndarray, count: int = 0) -> bytes:
    request = inference.ModelInferRequest(model_name="digits", raw_input_contents=[rows.tobytes()])
    request.inputs.add(name="data", datatype="FP32", shape=rows.shape)
    output = request.outputs.add(name="probabilities")
    if count:
        output.parameters["classification"].int64_param = count
    return request.SerializeToString()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Names of the outputs that came to the host, for each batch."""
    seen: list[list[str]] = []
    launch = Executor.launch

    def spy(executor: Executor, *feeds: Any, **how: Any) -> Any:
        outputs = launch(executor, *feeds, **how)
        seen.append(list(outputs))
        return outputs

    monkeypatch.setattr(Executor, "launch", spy)
    return seen


@pytest.mark.parametrize(("device", "precision"), [*((device, "fp32") for device in DEVICES), ("cpu", "fp16")])
def test_of_a_batch_that_wants_a_few_classes_these_alone_come_to_the_host(
    device: str, precision: str, copied: list[list[str]]
) -> None:
    package = package_of(CLASSES)
    spec, served = read_model(KEY, package, settings(4, precision), ["cuda:0"])
    host = NetHost(device, {KEY: served})
    pipeline = host.load(KEY, 4)
    whole = OwnBlock([ROWS])
    run_blocks(pipeline, whole)
    rows = whole.outputs[0]
    np.testing.assert_allclose(rows, probabilities(package, ROWS), atol=1e-6 if precision == "fp32" else 1e-3)

    def ask(*messages: bytes) -> list[bytes]:
        reads = [(parse_infer(each) if b"data" in each else parse_classify(each)).read(spec) for each in messages]
        blocks = [OwnBlock(read.source, wanted=numbers_of(read.wanted, spec)) for read in reads]  # type: ignore[arg-type]
        run_blocks(pipeline, *blocks)
        encoders = [infer_response if b"data" in each else classify_response for each in messages]
        return [
            encode("", spec, block.outputs, read.wanted, lambda: None)
            for encode, block, read in zip(encoders, blocks, reads, strict=True)
        ]

    for count, came in ((1, 2), (5, 2), (0, 2), (6, 1)):
        (answer,) = ask(classify(ROWS, count))
        assert len(copied[-1]) == came
        found = classifier.ClassifyResponse.FromString(answer).classifications
        for row, classification in zip(rows, found, strict=True):
            best = top_k(row[None], count or 5)[0]
            assert [label.index for label in classification.labels] == best.tolist()
            assert [label.name for label in classification.labels] == [f"class {index}" for index in best]
            np.testing.assert_allclose([label.probability for label in classification.labels], row[best], atol=1e-6)
    first, second, third = ask(classify(ROWS[:1], 2), infer(ROWS[1:2]), infer(ROWS[2:], 2))
    assert len(copied[-1]) == 3, "one of them wants all probabilities"
    (labels,) = classifier.ClassifyResponse.FromString(first).classifications
    assert [label.index for label in labels.labels] == top_k(rows[:1], 2)[0].tolist()
    tensor = inference.ModelInferResponse.FromString(second)
    assert list(tensor.outputs[0].shape) == [1, CLASSES]
    np.testing.assert_allclose(np.frombuffer(tensor.raw_output_contents[0], "<f4"), rows[1], atol=1e-6)
    (text,) = inference.ModelInferResponse.FromString(third).raw_output_contents
    assert f":{top_k(rows[2:], 1)[0, 0]}:class ".encode() in text
    host.close()


@pytest.mark.parametrize("device", DEVICES)
def test_equal_classes_are_ranked_by_index(device: str) -> None:
    package = package_of(CLASSES)
    even = Package(
        package.name,
        package.graph,
        {name: 0 * array for name, array in package.weights.items()},
        package.preprocessing,
        package.labels,
    )
    spec, served = read_model(KEY, even, settings(1), ["cuda:0"])
    host = NetHost(device, {KEY: served})
    read = parse_classify(classify(ROWS[:1], 5)).read(spec)
    block = OwnBlock(read.source, wanted=numbers_of(read.wanted, spec))  # type: ignore[arg-type]
    run_blocks(host.load(KEY, 1), block)
    (found,) = classifier.ClassifyResponse.FromString(
        classify_response("", spec, block.outputs, read.wanted, lambda: None)
    ).classifications
    assert [label.index for label in found.labels] == [0, 1, 2, 3, 4]
    host.close()


def test_clients_see_one_output_and_hosts_rank_what_is_small_or_theirs() -> None:
    spec, _ = read_model(KEY, package_of(CLASSES), settings(4), ["cuda:0", "cuda:1"])
    assert [tuple(one.shape) for one in metadata_message(spec, [1]).outputs] == [(-1, CLASSES)]
    small, _ = read_model(KEY, make_package(), settings(4), ["cuda:0"])
    near, _ = read_model(KEY, package_of(CLASSES), settings(4), ["cuda:0", "cpu"])
    assert [each.ranked for each in (spec, small, near)] == [5, 0, 0]
    assert [len(each.signature.outputs) for each in (spec, small, near)] == [3, 1, 1]
