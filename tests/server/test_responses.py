from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from dnnserve.front.parameters import Wanted
from dnnserve.front.responses import classify_response, infer_response, top_k

from dnncore import Handle, ops
from dnncore.dtypes import DType
from tests.server.fakes import make_spec

SPEC = make_spec()  # classes ant, bee, cat


def packed(elements: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@pytest.mark.parametrize("rows", [1, 2, 11, 1400])  # lengths of one, two and three bytes
def test_outputs_are_given_as_fp32_by_default(rows: int) -> None:
    outputs = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    response = inference.ModelInferResponse.FromString(
        infer_response("r1", SPEC, {0: outputs}, [Wanted(0, 0)], lambda: None)
    )
    assert (response.model_name, response.model_version, response.id) == ("toy", "1", "r1")
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("FP32", [rows, 3])
    assert response.raw_output_contents == [outputs.tobytes()]


def test_classes_are_given_as_value_index_label() -> None:
    outputs = np.array([[0.25, 0.5, 0.125], [0.0, 0.0, 1.0]], np.float32)
    response = inference.ModelInferResponse.FromString(
        infer_response("", SPEC, {0: outputs}, [Wanted(0, 2)], lambda: None)
    )
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("BYTES", [2, 2])
    texts = [b"0.500000:1:bee", b"0.250000:0:ant", b"1.000000:2:cat", b"0.000000:0:ant"]
    assert response.raw_output_contents == [packed(texts)]


@pytest.mark.parametrize("dtype", [each for each in DType if each.is_floating])
def test_classes_are_ranked_as_devices_do_equal_ones_by_index_and_nan_before_all(dtype: DType) -> None:
    outputs = np.array([[0.5, np.nan, 0.5, 0.75, -np.inf, np.nan, np.inf, 0.5]]).astype(dtype.numpy)
    assert top_k(outputs, 7).tolist() == [[1, 5, 6, 3, 0, 2, 7]]
    with Handle("cpu") as handle:
        x, values = handle.upload(outputs), handle.tensor((1, 7), dtype)
        indices = handle.tensor((1, 7), DType.INT32)
        ops.top_k(handle, 1, 1.0, x, 0.0, values, indices)
        assert indices.numpy().tolist() == top_k(outputs, 7).tolist()


@pytest.mark.parametrize("classes", [1, 5, 299, 300])
def test_of_ties_and_nan_a_few_classes_are_the_first_of_all_that_are_sorted(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_values = []
    argsort = np.argsort

    def spy(values: np.ndarray, **how: Any) -> np.ndarray:
        sorted_values.append(values.size)
        return argsort(values, **how)

    monkeypatch.setattr(np, "argsort", spy)
    rows = np.random.default_rng(7).choice([np.nan, -np.inf, -1, -0.0, 0.0, 2, np.inf], (50, 300)).astype(np.float32)
    rows[0], rows[1] = np.nan, 3
    expected = [sorted(range(300), key=lambda i: (not np.isnan(row[i]), -row[i], i))[:classes] for row in rows]
    assert top_k(rows, classes).tolist() == expected
    assert sorted_values == [50 * classes]


def test_classify_answers_with_labels_most_probable_first() -> None:
    serialized = classify_response(
        "r2", SPEC, {0: np.array([[0.25, 0.5, 0.125]], np.float32)}, [Wanted(0, 2)], lambda: None
    )
    response = classifier.ClassifyResponse.FromString(serialized)
    (classification,) = response.classifications
    labels = [(label.index, label.name, label.probability) for label in classification.labels]
    assert labels == [(1, "bee", 0.5), (0, "ant", 0.25)]
    assert (response.model_name, response.model_version, response.request_id) == ("toy", "1", "r2")
