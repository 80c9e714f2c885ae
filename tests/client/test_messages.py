from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dnnapi.v1 import classifier_pb2 as pb
from dnnclient.errors import InvalidArgumentError, ServerError
from dnnclient.messages import check_answer, classify_request, model_info

PIXELS = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)


def test_arrays_travel_row_major_and_little_endian_whatever_they_are_here() -> None:
    plain = np.arange(12, dtype="<f4").reshape(1, 1, 3, 4)
    turned = np.asfortranarray(plain).astype(">f4")
    assert classify_request(plain, model="m").tensor == classify_request(turned, model="m").tensor
    assert classify_request(plain, model="m").tensor.contents == plain.tobytes()


def test_one_image_is_a_batch_of_one() -> None:
    assert list(classify_request(PIXELS, model="m").tensor.shape) == [1, 2, 3, 1]
    assert list(classify_request(b"x", model="m").images) == [b"x"]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "there is no image"),
        ([PIXELS, b"x"], "mixed"),
        ([b"x", PIXELS], "mixed"),
        ("five.png", r"str is not an image; give bytes or a pathlib\.Path"),
        ([PIXELS, PIXELS[:1]], r"agree in shape and dtype, these are uint8\[1, 3, 1\], uint8\[2, 3, 1\]"),
        ([PIXELS, PIXELS.astype(np.float32)], "agree in shape and dtype"),
        (PIXELS.astype(np.float64), "dtype float64 is not sent"),
        (PIXELS[..., 0], r"shape \[2, 3\] is not an image"),
        ([PIXELS[np.newaxis]], r"shape \[1, 2, 3, 1\] is not an image"),
    ],
)
def test_what_no_model_takes_is_refused_before_it_is_sent(images: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        classify_request(images, model="m")  # type: ignore[arg-type]  # that is the point


def test_top_k_is_at_least_one() -> None:
    with pytest.raises(InvalidArgumentError, match="top_k is 0"):
        classify_request(b"x", model="m", top_k=0)


def test_a_missing_file_stays_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        classify_request(tmp_path / "none.png", model="m")


def test_a_classification_without_labels_is_the_servers_error() -> None:
    request = classify_request([b"x"], model="m")
    with pytest.raises(ServerError, match="without any label"):
        check_answer(request, pb.ClassifyResponse(classifications=[pb.Classification()]))


@pytest.mark.parametrize("text", ["7", "[]", '{"color": "gray"}', '{"color": "gray", "height": "x"}'])
def test_preprocessing_that_cannot_be_read_is_the_servers_error(text: str) -> None:
    response = pb.GetModelResponse(model_name="m", model_version="3", preprocessing_json=text)
    with pytest.raises(ServerError, match="the preprocessing of model m/3"):
        model_info(response)


def test_a_model_may_come_without_preprocessing() -> None:
    assert model_info(pb.GetModelResponse(model_name="m", model_version="3")).preprocessing is None
