from __future__ import annotations

from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.front.envelope_scanner import take_apart

from tests.server.fuzz_envelope import fuzz


def test_what_is_taken_apart_is_what_protobuf_reads() -> None:
    counts = fuzz(20_000, seed=1)
    assert counts.taken_apart > 4_000
    assert counts.taken_apart_and_refused > 300
    assert counts.left_to_protobuf > 2_000


def test_tensors_stay_where_they_are() -> None:
    tensors = [b"abc" * 100, b"", b"de" * 10_000]
    request = inference.ModelInferRequest(model_name="m", id="größer", raw_input_contents=tensors)
    message = request.SerializeToString()
    parts = take_apart(message)
    assert parts is not None
    rest, request_id, contents = parts
    assert request_id == "größer"
    assert inference.ModelInferRequest.FromString(rest) == inference.ModelInferRequest(model_name="m")
    assert [view.obj is message for view in contents] == [True] * 3
    assert list(map(bytes, contents)) == tensors


def test_what_is_not_written_as_usual_is_left_to_protobuf() -> None:
    for message in (
        b"\x0a\x81\x00m",
        b"\x08\x01",
        b"\x42\x00",
        b"\x3a\x05abc",
        b"\x0a",
        b"\x3a\xff\xff\xff\xff\x7f",
        b"\x1a\x011" * 2,
        b"\x1a\x01\xff",
    ):
        assert take_apart(message) is None


def test_where_id_and_tensor_lie_is_remembered_for_messages_that_differ_in_nothing_else() -> None:
    def message(model: str, request_id: str, tensor: bytes) -> bytes:
        request = inference.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[tensor])
        return request.SerializeToString()

    for model, request_id, tensor in (
        ("model", "7", b"abcd"),
        ("model", "8", b"efgh"),
        ("other", "7", b"abcd"),
        ("model", "77", b"abc"),
        ("mode", "77", b"abcd"),
        ("model", "", b"abcdefg"),
        ("model", "\x00", b""),
    ):
        parts = take_apart(message(model, request_id, tensor))
        assert parts is not None
        form, found_id, (contents,) = parts
        assert (inference.ModelInferRequest.FromString(form).model_name, found_id, bytes(contents)) == (
            model,
            request_id,
            tensor,
        )
    assert take_apart(message("model", "7", b"abcd").replace(b"7", b"\xff")) is None
