from __future__ import annotations

from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.front.envelope_scanner import split_raw_contents

from tests.server.fuzz_envelope import fuzz


def test_what_is_taken_apart_is_what_protobuf_reads() -> None:
    counts = fuzz(20_000, seed=1)
    assert counts.taken_apart > 5_000
    assert counts.taken_apart_and_refused > 500
    assert counts.left_to_protobuf > 2_000


def test_tensors_stay_where_they_are() -> None:
    request = inference.ModelInferRequest(model_name="m", raw_input_contents=[b"abc" * 100, b"", b"de" * 10_000])
    message = request.SerializeToString()
    parts = split_raw_contents(message)
    assert parts is not None
    rest, contents = parts
    assert inference.ModelInferRequest.FromString(rest) == inference.ModelInferRequest(model_name="m")
    assert [view.obj is message for view in contents] == [True] * 3
    assert list(map(bytes, contents)) == list(request.raw_input_contents)


def test_what_is_not_written_as_usual_is_left_to_protobuf() -> None:
    for message in (b"\x0a\x81\x00m", b"\x08\x01", b"\x42\x00", b"\x3a\x05abc", b"\x0a", b"\x3a\xff\xff\xff\xff\x7f"):
        assert split_raw_contents(message) is None
