from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from dnnserve.errors import InvalidRequestError
from dnnserve.front.areas import SharedImages, SharedRows
from dnnserve.front.parameters import Wanted
from dnnserve.front.requests import ClassifyRequest, InferenceInput, InferRequest, parse_classify, parse_infer
from dnnserve.front.sources import Images
from PIL import Image

from tests.server.fakes import make_spec

SPEC = make_spec(max_batch_rows=4)  # [3, 2, 4], classes ant, bee, cat
PIXELS = np.random.default_rng(7).integers(0, 256, (2, 2, 4, 3), np.uint8)
assert SPEC.preprocessing is not None
ROWS = SPEC.preprocessing.normalize(PIXELS)


def rows_of(read: InferenceInput) -> np.ndarray:
    """What the device makes of it: it normalises pixels."""
    assert not isinstance(read.source, (SharedRows, SharedImages))
    (rows,) = read.source.rows(lambda: None) if isinstance(read.source, Images) else read.source
    assert read.pixels == (rows.dtype == np.uint8)
    assert SPEC.preprocessing is not None
    return SPEC.preprocessing.normalize(rows) if rows.dtype == np.uint8 else rows


def read(request: inference.ModelInferRequest) -> InferenceInput:
    return parse_infer(request.SerializeToString()).read(SPEC)


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def packed(elements: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def infer_request(
    datatype: str = "FP32",
    shape: Iterable[int] = (2, 3, 2, 4),
    raw: bytes | None = None,
    name: str = "data",
    **contents: Any,
) -> inference.ModelInferRequest:
    request = inference.ModelInferRequest(model_name="toy")
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    if contents:
        tensor.contents.CopyFrom(inference.InferTensorContents(**contents))
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request


ACCEPTED = {
    "FP32 raw": infer_request(raw=ROWS.tobytes()),
    "FP32 contents": infer_request(fp32_contents=ROWS.ravel().tolist()),
    "UINT8 raw": infer_request("UINT8", PIXELS.shape, PIXELS.tobytes()),
    "UINT8 contents": infer_request("UINT8", PIXELS.shape, uint_contents=PIXELS.ravel().tolist()),
    "BYTES raw [n]": infer_request("BYTES", (2,), packed(map(png, PIXELS))),
    "BYTES raw [n, 1]": infer_request("BYTES", (2, 1), packed(map(png, PIXELS))),
    "BYTES contents": infer_request("BYTES", (2,), bytes_contents=[png(image) for image in PIXELS]),
}


@pytest.mark.parametrize("request_", ACCEPTED.values(), ids=ACCEPTED)
def test_every_form_of_the_input_gives_the_same_rows(request_: inference.ModelInferRequest) -> None:
    rows = rows_of(read(request_))
    np.testing.assert_array_equal(rows, ROWS)


def test_raw_rows_are_a_view_of_the_message() -> None:
    message = infer_request(raw=ROWS.tobytes()).SerializeToString()
    rows = rows_of(parse_infer(message).read(SPEC))
    assert np.shares_memory(rows, np.frombuffer(message, np.uint8))


def altered(change: Callable[[inference.ModelInferRequest], object]) -> inference.ModelInferRequest:
    request = infer_request(raw=ROWS.tobytes())
    change(request)
    return request


def with_parameter(name: str, **value: Any) -> inference.ModelInferRequest:
    return altered(lambda r: r.parameters[name].CopyFrom(inference.InferParameter(**value)))


def with_output(name: str = "scores", **classification: Any) -> inference.ModelInferRequest:
    request = infer_request(raw=ROWS.tobytes())
    output = request.outputs.add(name=name)
    if classification:
        output.parameters["classification"].CopyFrom(inference.InferParameter(**classification))
    return request


REFUSED = {
    "no input": (altered(lambda r: r.ClearField("inputs")), "0 inputs"),
    "wrong name": (infer_request(name="image", raw=ROWS.tobytes()), "'image'.*exactly one, 'data'"),
    "duplicate input": (altered(lambda r: r.inputs.add(name="data")), "2 inputs"),
    "many inputs": (altered(lambda r: [r.inputs.add(name="x" * 500) for _ in range(99)]), r"100 inputs .*\.\.\."),
    "empty datatype": (infer_request("", raw=b""), "datatype ''"),
    "unknown datatype": (infer_request("FP64", raw=b""), "'FP64'.*use FP32, UINT8, BYTES"),
    "no shape": (infer_request(shape=(), raw=ROWS.tobytes()), r"shape \[\]"),
    "no batch dimension": (infer_request(shape=(3, 2, 4), raw=b""), r"\[3, 2, 4\].*send \[n, 3, 2, 4\]"),
    "pixels in the wrong order": (infer_request("UINT8", (2, 3, 2, 4), PIXELS.tobytes()), r"send \[n, 2, 4, 3\]"),
    "too many dimensions": (infer_request(shape=[1] * 5000, raw=b""), "of 5000 dimensions"),
    "negative rows": (infer_request(shape=(-1, 3, 2, 4), raw=b""), "-1 rows.*1 to 4"),
    "no rows": (infer_request(shape=(0, 3, 2, 4), raw=b""), "0 rows"),
    "too many rows": (infer_request(shape=(5, 3, 2, 4), raw=b"\0" * 480), "5 rows.*1 to 4"),
    "rows that overflow": (infer_request(shape=(2**62, 3, 2, 4), raw=b""), "1 to 4"),
    "other size": (infer_request(shape=(2, 3, 2**40, 2**40), raw=b""), r"send \[n, 3, 2, 4\]"),
    "truncated": (infer_request(raw=ROWS.tobytes()[:-1]), "191 bytes.*192"),
    "too long": (infer_request(raw=ROWS.tobytes() + b"\0"), "193 bytes.*192"),
    "no data at all": (infer_request(), "1 of the request's inputs have no contents.*bytes of 0"),
    "raw and contents": (infer_request(raw=ROWS.tobytes(), fp32_contents=[1.0]), "one of the two"),
    "two raw contents": (altered(lambda r: r.raw_input_contents.append(b"")), "bytes of 2"),
    "contents of another type": (
        infer_request(int_contents=[1] * 48),
        "has int_contents; FP32 is sent in fp32_contents alone",
    ),
    "contents of two types": (
        infer_request(fp32_contents=ROWS.ravel().tolist(), int_contents=[1], bool_contents=[True]),
        "has bool_contents, int_contents; FP32",
    ),
    "pixel above 255": (infer_request("UINT8", (1, 2, 4, 3), uint_contents=[256] * 24), "256"),
    "BYTES ends in a length": (infer_request("BYTES", (2,), packed([b"a"]) + b"\1\0"), "after 1 elements"),
    "BYTES length too large": (infer_request("BYTES", (1,), b"\xff\xff\xff\xffab"), "4294967295 bytes; 2 are left"),
    "BYTES left over": (infer_request("BYTES", (1,), packed([b"a", b"b"])), "5 bytes after its 1"),
    "BYTES of two dimensions": (infer_request("BYTES", (1, 2), packed([b"a", b"b"])), r"send \[n\]"),
    "BYTES contents missing": (infer_request("BYTES", (2,), bytes_contents=[b"a"]), "1 elements.*2"),
    "unknown output": (with_output("logits"), "'logits'.*'scores'"),
    "duplicate output": (altered(lambda r: [r.outputs.add(name="scores") for _ in range(2)]), "2 outputs"),
    "no class": (with_output(int64_param=0), "classification 0"),
    "classes as text": (with_output(string_param="3"), "string_param; send int64_param"),
    "negative timeout": (with_parameter("timeout", int64_param=-5), "-5 us"),
    "negative priority": (with_parameter("priority", int64_param=-1), "priority -1 is negative"),
    "timeout as text": (with_parameter("timeout", string_param="1"), "string_param"),
    "sequence": (with_parameter("sequence_id", int64_param=1), "sequences"),
    "region that is no string": (
        altered(lambda r: r.inputs[0].parameters["shared_memory_region"].CopyFrom(inference.InferParameter())),
        "shared_memory_region.*no string",
    ),
}


@pytest.mark.parametrize(("request_", "message"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_does_not_fit_is_refused(request_: inference.ModelInferRequest, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"(?s){message}") as caught:
        read(request_)
    assert len(str(caught.value)) < 1000


BAD_IMAGES = {
    "not an image": (b"hello, world", "image 1: .*not a readable"),
    "empty": (b"", "image 1: .*empty"),
    "truncated": (png(PIXELS[0])[:50], "image 1"),
    "bomb": (png(np.zeros((200, 200, 3), np.uint8)), "image 1: .*200 x 200.*10000"),
}


@pytest.mark.parametrize(("image", "message"), BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_bytes_that_are_no_image_are_refused_by_their_position(image: bytes, message: str) -> None:
    for asked in (
        read(infer_request("BYTES", (2,), packed([png(PIXELS[0]), image]))),
        parse_classify(classifier.ClassifyRequest(images=[png(PIXELS[0]), image]).SerializeToString()).read(SPEC),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            rows_of(asked)


@pytest.mark.parametrize(("sent", "found"), [(0, None), (1500, 1500)])
def test_the_timeout_parameter_is_in_microseconds_and_zero_is_none(sent: int, found: int | None) -> None:
    assert read(with_parameter("timeout", int64_param=sent)).timeout_us == found
    assert read(with_parameter("timeout", uint64_param=sent)).timeout_us == found


def test_the_priority_parameter_is_read() -> None:
    assert read(with_parameter("priority", uint64_param=1)).priority == 1
    assert read(with_parameter("timeout", int64_param=1)).priority == 0


@pytest.mark.parametrize(("sent", "found"), [(1, 1), (3, 3), (2**40, 3)])
def test_classification_asks_for_at_most_all_classes(sent: int, found: int) -> None:
    assert read(with_output(int64_param=sent)).wanted == (Wanted(0, found),)


def test_classes_of_all_rows_have_a_bound() -> None:
    most = (1 << 16) // 3
    spec = make_spec(max_batch_rows=1 << 20)
    for rows in (most, most + 1):
        tensor = np.zeros((rows, 3, 2, 4), np.uint8)
        infer = infer_request("UINT8", (rows, 2, 4, 3), tensor.tobytes())
        infer.outputs.add(name="scores").parameters["classification"].int64_param = 3
        pixels = classifier.Tensor(datatype="UINT8", shape=(rows, 2, 4, 3), contents=tensor.tobytes())
        classify = classifier.ClassifyRequest(model_name="toy", tensor=pixels)
        files = classifier.ClassifyRequest(model_name="toy", images=[b""] * rows)
        requests: list[InferRequest | ClassifyRequest] = [
            parse_infer(infer.SerializeToString()),
            parse_classify(classify.SerializeToString()),
            parse_classify(files.SerializeToString()),
        ]
        for request in requests:
            if rows == most:
                request.read(spec)
            else:
                with pytest.raises(InvalidRequestError, match=r"65538 classes in all 21846 rows; .* at most 65536"):
                    request.read(spec)


CLASSIFY_ACCEPTED = {
    "images": classifier.ClassifyRequest(images=[png(image) for image in PIXELS]),
    "FP32": classifier.ClassifyRequest(
        tensor=classifier.Tensor(datatype="FP32", shape=ROWS.shape, contents=ROWS.tobytes())
    ),
    "UINT8": classifier.ClassifyRequest(
        tensor=classifier.Tensor(datatype="UINT8", shape=PIXELS.shape, contents=PIXELS.tobytes())
    ),
}


@pytest.mark.parametrize("request_", CLASSIFY_ACCEPTED.values(), ids=CLASSIFY_ACCEPTED)
def test_every_form_of_a_classify_request_gives_the_same_rows(request_: classifier.ClassifyRequest) -> None:
    asked = parse_classify(request_.SerializeToString()).read(SPEC)
    assert asked.wanted == (Wanted(0, 3),)
    np.testing.assert_array_equal(rows_of(asked), ROWS)


CLASSIFY_REFUSED = {
    "nothing": (classifier.ClassifyRequest(), "neither images nor a tensor"),
    "both": (classifier.ClassifyRequest(images=[b"x"], tensor=classifier.Tensor()), "both images and a tensor"),
    "too many images": (classifier.ClassifyRequest(images=[b"x"] * 5), "5 rows.*1 to 4"),
    "no datatype": (classifier.ClassifyRequest(tensor=classifier.Tensor()), "datatype ''"),
    "BYTES": (classifier.ClassifyRequest(tensor=classifier.Tensor(datatype="BYTES", shape=[1])), "as its images"),
    "wrong shape": (classifier.ClassifyRequest(tensor=classifier.Tensor(datatype="FP32", shape=[1, 9])), r"\[1, 9\]"),
    "wrong size": (
        classifier.ClassifyRequest(tensor=classifier.Tensor(datatype="FP32", shape=[1, 3, 2, 4], contents=b"abc")),
        "3 bytes.*96",
    ),
}


@pytest.mark.parametrize(("request_", "message"), CLASSIFY_REFUSED.values(), ids=CLASSIFY_REFUSED)
def test_a_classify_request_that_does_not_fit_is_refused(request_: classifier.ClassifyRequest, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_classify(request_.SerializeToString()).read(SPEC)


def test_a_form_that_came_before_is_checked_against_the_model_that_is_there_now() -> None:
    requests = [infer_request(raw=ROWS.tobytes()) for _ in range(2)]
    for number, request in enumerate(requests):
        request.id = f"id {number}"
    first, second = (parse_infer(request.SerializeToString()) for request in requests)
    assert first.form is second.form
    assert (first.id, second.id) == ("id 0", "id 1")
    first.read(SPEC)
    with pytest.raises(InvalidRequestError, match=r"2 rows.*1 to 1"):
        second.read(make_spec(max_batch_rows=1))
    np.testing.assert_array_equal(rows_of(second.read(SPEC)), ROWS)
    with pytest.raises(InvalidRequestError, match="189 bytes"):
        parse_infer(infer_request(raw=ROWS.tobytes()[3:]).SerializeToString()).read(SPEC)
