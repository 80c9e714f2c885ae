"""The inference protocol over HTTP, with fake devices behind it."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dnnserve.app import Server
from dnnserve.errors import QueueFullError, StartError
from dnnserve.front import parameters
from dnnserve.front.gate import Gate
from dnnserve.front.rest import connection, transcoding
from dnnserve.http import connection as limits
from dnnserve.http.connection import Desk
from PIL import Image

from dnncore.errors import DeviceFaultError
from tests.server.fakes import PATIENCE_S, Lab, make_rows, make_spec, wait_until
from tests.server.serving import Client, make_config, scores, serving

INFER = "/v2/models/toy/infer"
REGISTER = "/v2/systemsharedmemory/region/x/register"
SHAPE = [1, 3, 2, 4]


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def served(lab: Lab) -> Iterator[tuple[Server, Client]]:
    specs = (make_spec(), make_spec(version=3), make_spec("other", 2))
    with serving(lab, specs=specs, http_port=0, max_message_mib=1) as both:
        yield both


@pytest.fixture
def client(served: tuple[Server, Client]) -> Client:
    return served[1]


class Reply:
    """A response: its status, its headers, its JSON, and what stands behind that."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        data = response.read()
        self.status, self.headers = response.status, response.headers
        length = int(self.headers.get("Inference-Header-Content-Length", len(data)))
        self.json: Any = json.loads(data[:length]) if data else None
        self.binary = data[length:]


def connect(client: Client) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(client.http_address, timeout=PATIENCE_S)


def ask(client: Client, path: str, body: Any = None, verb: str = "", **headers: str) -> Reply:
    connection_ = connect(client)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection_.request(verb or ("GET" if body is None else "POST"), path, data, names)
        return Reply(connection_.getresponse())
    finally:
        connection_.close()


def json_request(value: float = 1.0, count: int = 1, **changes: Any) -> dict[str, Any]:
    """A request whose tensor is nested; `changes` are of its tensor."""
    rows = make_rows(value, count)
    tensor = {"name": "data", "datatype": "FP32", "shape": list(rows.shape), "data": rows.tolist(), **changes}
    return {"id": f"value {value}", "inputs": [tensor]}


def binary_request(tensor: bytes, datatype: str = "FP32", shape: Any = SHAPE, **members: Any) -> tuple[bytes, str]:
    parameters = {"binary_data_size": len(tensor)}
    described = {"name": "data", "datatype": datatype, "shape": shape, "parameters": parameters}
    text = json.dumps({"inputs": [described], **members}).encode()
    return text + tensor, str(len(text))


def test_the_server_and_its_models_describe_themselves(client: Client) -> None:
    assert ask(client, "/v2").json["name"] == "dnnserve"
    assert "binary_tensor_data" in ask(client, "/v2").json["extensions"]
    assert ask(client, "/v2/health/live").json == {"live": True}
    assert ask(client, "/v2/health/ready?verbose").status == 200
    assert ask(client, "/v2/models/toy/versions/1/ready").json == {"ready": True}
    assert ask(client, "/v2/models/toy").json == {
        "name": "toy",
        "versions": ["1", "3"],
        "platform": "dnncore",
        "inputs": [{"name": "data", "datatype": "FP32", "shape": [-1, 3, 2, 4]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
    }
    config = ask(client, "/v2/models/toy/config").json
    assert (config["max_batch_size"], config["input"][0]["format"]) == (8, "FORMAT_NCHW")
    assert (config["input"][0]["dims"], config["parameters"]) == ([3, 2, 4], {})
    ask(client, INFER, json_request(1.0, 2))
    (stats,) = ask(client, "/v2/models/toy/versions/3/stats").json["model_stats"]
    assert (stats["version"], stats["inference_count"], stats["inference_stats"]["success"]["count"]) == ("3", 2, 1)
    assert len(ask(client, "/v2/models/stats").json["model_stats"]) == 3
    head = ask(client, "/v2/models/toy", verb="HEAD")
    assert (head.status, head.json, int(head.headers["Content-Length"]) > 100) == (200, None, True)


@pytest.mark.parametrize("nested", [True, False])
def test_a_tensor_comes_as_json_and_its_answer_too(client: Client, nested: bool) -> None:
    request = json_request(2.0, 2)
    if not nested:
        request["inputs"][0]["data"] = make_rows(2.0, 2).ravel().tolist()
    assert ask(client, INFER, request).json == {
        "model_name": "toy",
        "model_version": "3",
        "id": "value 2.0",
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [2, 3], "data": [2.0, 4.0, 6.0] * 2}],
    }


def test_a_tensor_comes_as_bytes_behind_the_json_and_its_answer_where_it_is_asked_for(client: Client) -> None:
    body, length = binary_request(make_rows(2.0).tobytes(), parameters={"binary_data_output": True})
    reply = ask(client, "/v2/models/toy/versions/1/infer", body, Inference_Header_Content_Length=length)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/octet-stream")
    assert reply.json["model_version"] == "1"
    assert reply.json["outputs"][0]["parameters"] == {"binary_data_size": 12}
    assert np.frombuffer(reply.binary, "<f4").tolist() == [2.0, 4.0, 6.0]
    outputs = [{"name": "scores", "parameters": {"binary_data": False, "classification": 2}}]
    body, length = binary_request(
        make_rows(2.0).tobytes(), outputs=outputs, parameters={"binary_data_output": True, "priority": 3, "x": 0.5}
    )
    (output,) = ask(client, INFER, body, Inference_Header_Content_Length=length).json["outputs"]
    assert (output["shape"], output["data"]) == ([1, 2], ["6.000000:2:cat", "4.000000:1:bee"])


def test_pixels_and_image_files_come_in_both_forms(client: Client) -> None:
    pixels = np.full((1, 2, 4, 3), 3, np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels[0]).save(stream, "PNG")
    file = struct.pack("<I", len(stream.getvalue())) + stream.getvalue()
    as_json = ask(client, INFER, json_request(datatype="UINT8", shape=[1, 2, 4, 3], data=pixels.tolist())).json
    for tensor, datatype, shape in ((pixels.tobytes(), "UINT8", [1, 2, 4, 3]), (file, "BYTES", [1])):
        body, length = binary_request(tensor, datatype, shape)
        answer = ask(client, INFER, body, Inference_Header_Content_Length=length)
        assert answer.json["outputs"] == as_json["outputs"]
    assert as_json["outputs"][0]["data"] == pytest.approx([72.0, 144.0, 216.0])
    refused = ask(client, INFER, json_request(datatype="BYTES", shape=[1], data=["no image"]))
    assert (refused.status, "image 0" in refused.json["error"]) == (400, True)


BINARY = binary_request(make_rows(1.0).tobytes())
AS_BYTES = {"parameters": {"binary_data_output": True}}
NO_DATA = {"inputs": [{"name": "data", "datatype": "FP32", "shape": SHAPE}]}
REFUSALS: dict[str, tuple[str, Any, dict[str, str], int, str]] = {
    "unknown path": ("/v3", None, {}, 404, "there is no '/v3'"),
    "below a model": ("/v2/models/toy/weights", None, {}, 404, "there is no"),
    "unknown model": ("/v2/models/nope", None, {}, 404, "'nope'.*'toy'"),
    "unknown version": ("/v2/models/toy/versions/2/infer", json_request(), {}, 404, "version 2.*1, 3"),
    "no version": ("/v2/models/toy/versions/x/ready", None, {}, 400, "positive integer"),
    "another verb": (INFER, None, {}, 405, "by POST"),
    "no JSON": (INFER, b"{", {}, 400, "no JSON"),
    "deep JSON": (INFER, b"[" * 100_000, {}, 400, "no JSON"),
    "not UTF-8": (INFER, b'{"id": "\xff"}', {}, 400, "no JSON"),
    "a surrogate": (INFER, b'{"id": "\\ud800", "inputs": []}', {}, 400, "cannot be read"),
    "no object": (INFER, [1], {}, 400, "is an array in JSON; send an object"),
    "no inputs": (INFER, {}, {}, 400, "'inputs' is missing"),
    "inputs of numbers": (INFER, {"inputs": [1]}, {}, 400, r"inputs\[0\] is a whole number"),
    "no name": (INFER, {"inputs": [{}]}, {}, 400, "'name' is missing"),
    "wrong name": (INFER, json_request(name="image"), {}, 400, "'image'.*exactly one, 'data'"),
    "unknown datatype": (INFER, json_request(datatype="FP64"), {}, 400, "'FP64'.*use FP32"),
    "shape of text": (INFER, json_request(shape=["a"]), {}, 400, "'data' has a string; send whole numbers"),
    "shape of truths": (INFER, json_request(shape=[True, 3, 2, 4]), {}, 400, "'data' has true or false; send whole"),
    "enormous extent": (INFER, json_request(shape=[10**40]), {}, 400, "cannot be read"),
    "enormous shape": (INFER, json_request(shape=[2**62, 3, 2, 4]), {}, 400, "elements; its shape has"),
    "many dimensions": (INFER, json_request(shape=[9] * 33), {}, 400, "33 dimensions; at most 32"),
    "large extents": (INFER, json_request(shape=[2**63 - 1] * 32, data=[1.0]), {}, 400, "elements; its shape has"),
    "no data": (INFER, NO_DATA, {}, 400, "1 of .* no contents.*bytes of 0"),
    "ragged": (INFER, json_request(data=[[[[1.0] * 4, [1.0] * 3]] * 3]), {}, 400, "neither flat nor nested"),
    "text among numbers": (INFER, json_request(data=["1"] * 24), {}, 400, "cannot be read"),
    "number too large": (INFER, json_request(data=[10**400] * 24), {}, 400, "cannot be read"),
    "pixel below 0": (INFER, json_request(datatype="UINT8", shape=[1, 2, 4, 3], data=[-1] * 24), {}, 400, "cannot"),
    "pixel above 255": (INFER, json_request(datatype="UINT8", shape=[1, 2, 4, 3], data=[256] * 24), {}, 400, "256"),
    "too many rows": (INFER, json_request(1.0, 9), {}, 400, "9 rows.*1 to 8"),
    "null parameter": (INFER, {**json_request(), "parameters": {"timeout": None}}, {}, 400, "'timeout' is null"),
    "timeout as text": (INFER, {**json_request(), "parameters": {"timeout": "1"}}, {}, 400, "string_param; send"),
    "sequence": (INFER, {**json_request(), "parameters": {"sequence_id": 1}}, {}, 400, "sequences"),
    "shared memory": (INFER, json_request(parameters={"shared_memory_region": "x"}), {}, 400, "shared memory"),
    "unknown output": (INFER, {**json_request(), "outputs": [{"name": "logits"}]}, {}, 400, "'logits'.*'scores'"),
    "binary_data as text": (
        INFER, {**json_request(), "outputs": [{"name": "scores", "parameters": {"binary_data": "yes"}}]}, {}, 400, "true or",
    ),
    "bytes and data": (INFER, json_request(parameters={"binary_data_size": 0}), {}, 400, "one of the two"),
    "too few bytes": (INFER, BINARY[0][:-1], {"Inference_Header_Content_Length": BINARY[1]}, 400, "is 96; 95 bytes"),
    "bytes left": (INFER, BINARY[0] + b"x", {"Inference_Header_Content_Length": BINARY[1]}, 400, "1 bytes are left"),
    "length beyond the body": (INFER, b"{}", {"Inference_Header_Content_Length": "3"}, 400, "is 3; the body has 2"),
    "length of text": (INFER, b"{}", {"Inference_Header_Content_Length": "-1"}, 400, "'-1'; send the bytes"),
    "compressed": (INFER, b"{}", {"Content_Encoding": "gzip"}, 415, "compressed"),
    "key with a surrogate": (REGISTER, b'{"key": "\\ud800", "byte_size": 1}', {}, 400, "region cannot be read"),
    "large region": (REGISTER, b" " * ((64 << 10) + 1), {}, 400, "65537 bytes of JSON; at most 65536"),
    "large index": ("/v2/repository/index", b" " * ((64 << 10) + 1), {}, 400, "65537 bytes of JSON; at most 65536"),
    "too large": (INFER, b" " * ((1 << 20) + 1), {}, 413, "1048577 bytes; at most 1048576"),
}  # fmt: skip


def test_a_bad_request_gets_a_json_error_and_the_server_goes_on(client: Client) -> None:
    for case, (
        path,
        body,
        headers,
        code,
        message,
    ) in REFUSALS.items():  # one server for all: its start and end take longer
        reply = ask(client, path, body, **headers)
        assert (case, reply.status, list(reply.json)) == (case, code, ["error"])
        assert re.search(message, reply.json["error"]), f"{case}: {reply.json}"
        assert len(reply.json["error"]) < 1000
    assert ask(client, INFER, json_request(2.0)).json["outputs"][0]["data"] == [2.0, 4.0, 6.0]


def test_json_has_a_bound_of_its_own(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcoding, "MAX_JSON_BYTES", 100)
    reply = ask(client, INFER, json_request())
    assert (reply.status, "binary data" in reply.json["error"]) == (400, True)


def test_tensors_of_answers_that_become_json_have_a_bound(
    lab: Lab, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "_MAX_JSON_TENSOR_BYTES", 24)
    as_bytes: dict[str, Any] = {"name": "scores", "parameters": {"binary_data": True}}
    as_json: dict[str, Any] = {"name": "scores", "parameters": {"binary_data": False}}
    written: list[dict[str, Any]] = [{}, {"outputs": [{"name": "scores"}]}, {"outputs": [as_json], **AS_BYTES}]
    for members in written:
        assert ask(client, INFER, {**json_request(1.0, 2), **members}).status == 200
        ran = len(lab.batches)
        reply = ask(client, INFER, {**json_request(1.0, 3), **members})
        assert (reply.status, "36 bytes" in reply.json["error"], "binary_data" in reply.json["error"]) == (
            400,
            True,
            True,
        )
        assert len(lab.batches) == ran
    classes = {"name": "scores", "parameters": {"classification": 3}}
    unwritten: list[dict[str, Any]] = [AS_BYTES, {"outputs": [as_bytes]}, {"outputs": [classes]}]
    for members in unwritten:
        assert ask(client, INFER, {**json_request(1.0, 3), **members}).status == 200


def test_a_connection_serves_one_request_after_another_also_when_they_come_at_once(client: Client) -> None:
    body = json.dumps(json_request(2.0)).encode()
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"
    head = b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: x\r\n"
    with socket.create_connection(address_of(client), PATIENCE_S) as raw:
        raw.sendall(
            head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            + head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked
            + b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )  # fmt: skip
        answers = read_all(raw)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert answers.count(b'"data":[2.0,4.0,6.0]') == 2
    assert answers.endswith(b'{"live":true}')


def test_a_client_that_asks_first_is_told_before_it_sends_too_much(client: Client) -> None:
    head = b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    body = json.dumps(json_request(2.0)).encode()
    with socket.create_connection(address_of(client), PATIENCE_S) as raw:
        raw.sendall(head % len(body))
        assert raw.recv(100).startswith(b"HTTP/1.1 100 ")
        raw.sendall(body)
        assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
    with socket.create_connection(address_of(client), PATIENCE_S) as raw:
        raw.sendall(head % (1 << 40))
        assert read_all(raw).startswith(b"HTTP/1.1 413 ")


def test_what_is_no_http_is_refused_and_slow_requests_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for garbage in (
        b"\x16\x03\x01\r\n\r\n",
        b"GET /" + b"x" * 100_000,
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nA" * 3 + b"\r\n\r\n",
    ):
        with socket.create_connection(address_of(client), PATIENCE_S) as raw:
            raw.sendall(garbage)
            assert read_all(raw)[:10] == b"HTTP/1.1 4"
    monkeypatch.setattr(limits, "_HEAD_S", 0.2)
    for slow in (
        b"GET /v2 HTTP/1.1\r\n",
        b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{",
    ):
        with socket.create_connection(address_of(client), PATIENCE_S) as raw:
            raw.sendall(slow)
            assert read_all(raw).startswith(b"HTTP/1.1 408 ")


def test_bodies_that_are_on_their_way_have_a_bound_together(lab: Lab) -> None:
    head = b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with serving(lab, http_port=0, max_message_mib=1) as (server, client):
        front: Any = server._front
        desk, most = front._http._desk, 8 << 20
        holders = [socket.create_connection(address_of(client), PATIENCE_S) for _ in range(8)]
        for raw in holders:
            raw.sendall(head % (1 << 20) + b" " * ((1 << 20) - 1))
        wait_until(lambda: desk.held_bytes == most - 8)
        held = [each._transport.get_extra_info("socket") for each in desk.connections]
        assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in held)  # else answers wait 40 ms
        refused = ask(client, INFER, json_request())
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        for raw in holders:
            raw.close()
        wait_until(lambda: desk.held_bytes == 0)
        assert ask(client, INFER, json_request()).status == 200
        assert desk.held_bytes == 0


def test_beyond_the_bound_on_connections_they_are_closed(lab: Lab) -> None:
    with serving(lab, http_port=0, max_connections=2) as (_, client):
        idle = [socket.create_connection(address_of(client), PATIENCE_S) for _ in range(2)]
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            ask(client, "/v2")
        idle.pop().close()
        wait_until(lambda: answers(client))
        idle.pop().close()


def answers(client: Client) -> bool:
    try:
        return ask(client, "/v2/health/live").status == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def test_tokens_are_asked_for_before_a_body_is_read(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("infer infer-0123456789abcdef\nmetadata metadata-0123456789\nhealth *\n")
    with serving(lab, http_port=0, max_message_mib=1, token_file=tmp_path / "tokens") as (_, client):
        assert ask(client, "/v2/health/live").status == 200
        known = {"Authorization": "Bearer infer-0123456789abcdef"}
        assert ask(client, INFER, json_request(2.0), **known).json["outputs"][0]["data"] == [2.0, 4.0, 6.0]
        missing = ask(client, INFER, json_request())
        assert (missing.status, missing.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert ask(client, INFER, b" " * (2 << 20)).status == 401
        assert ask(client, "/v2/models/toy", **known).status == 403
        requests = client.metrics()["dnnserve_requests_total"]
        assert requests["ModelInfer", "", "UNAUTHENTICATED", ""] == 2
        assert requests["ModelMetadata", "", "PERMISSION_DENIED", ""] == 1


def test_overload_says_when_to_come_again(served: tuple[Server, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = served

    def full(_request: object) -> None:
        error = QueueFullError("full")
        error.retry_after_ms = 1001
        raise error

    monkeypatch.setattr(server.scheduler, "submit", full)
    reply = ask(client, INFER, json_request())
    assert (reply.status, reply.headers["Retry-After"], reply.json) == (429, "2", {"error": "full"})


def test_a_timeout_is_kept_and_a_client_that_leaves_frees_its_place(lab: Lab) -> None:
    with serving(lab, http_port=0) as (server, client):

        def depth() -> int:
            return sum(server.scheduler.queue_depths().values())

        lab.pause("cpu")
        running = client.send()
        lab.wait_running("cpu")
        late = ask(client, INFER, {**json_request(), "parameters": {"timeout": 20_000}})
        assert (late.status, "deadline was 20.0 ms" in late.json["error"]) == (504, True)
        leaving = connect(client)
        leaving.request("POST", INFER, json.dumps(json_request()))
        wait_until(lambda: depth() == 1)
        leaving.close()
        wait_until(lambda: depth() == 0)
        lab.resume()
        assert scores(running.result(PATIENCE_S)) == [[1.0, 2.0, 3.0]]
        requests = client.metrics()["dnnserve_requests_total"]
        assert (
            requests["ModelInfer", "toy", "CANCELLED", "1"]
            == requests["ModelInfer", "toy", "DEADLINE_EXCEEDED", "1"]
            == 1
        )


def test_a_defect_is_500_and_no_device_503(lab: Lab) -> None:
    with serving(lab, http_port=0) as (_, client):
        lab.fail_next("cpu", RuntimeError("secret"))
        broken = ask(client, INFER, json_request())
        assert (broken.status, "secret" in broken.json["error"]) == (500, False)
        lab.fail_next("cpu", DeviceFaultError("gone"))
        assert ask(client, INFER, json_request()).status == 503
        ready = ask(client, "/v2/health/ready")
        assert (ready.status, ready.json) == (503, {"ready": False})
        assert ask(client, "/v2/models/toy/ready").status == 503
        assert ask(client, "/v2/health/live").status == 200


def test_http_and_grpc_requests_share_a_batch(lab: Lab) -> None:
    with serving(lab, http_port=0, hold_until_requests=2) as (_, client):
        call = client.send(1.0)
        assert ask(client, INFER, json_request(2.0)).json["outputs"][0]["data"] == [2.0, 4.0, 6.0]
        assert scores(call.result(PATIENCE_S)) == [[1.0, 2.0, 3.0]]
    assert lab.batches == [("cpu", 2)]


def test_a_stop_answers_what_is_inside_and_closes_what_is_idle(lab: Lab) -> None:
    with serving(lab, http_port=0) as (server, client):
        idle = socket.create_connection(address_of(client), PATIENCE_S)
        lab.pause("cpu")
        inside = connect(client)
        inside.request("POST", INFER, json.dumps(json_request(2.0)))
        lab.wait_running("cpu")
        stopper = threading.Thread(target=server.drain)
        stopper.start()
        assert idle.recv(1) == b""
        lab.resume()
        response = inside.getresponse()
        assert response.getheader("Connection") == "close"
        assert Reply(response).json["outputs"][0]["data"] == [2.0, 4.0, 6.0]
        stopper.join(PATIENCE_S)
        assert not stopper.is_alive()
        idle.close()
        inside.close()
        with pytest.raises(OSError):
            socket.create_connection(address_of(client), PATIENCE_S)


def test_a_port_that_is_taken_is_said_at_the_start(lab: Lab) -> None:
    with serving(lab, http_port=0) as (_, client):
        port = address_of(client)[1]
        for front_ends in (0, 1):
            with pytest.raises(StartError, match="choose another with --http-port"):
                Server(make_config(http_port=port, front_ends=front_ends), ("cpu",), (make_spec(),), lab.open_host)


def address_of(client: Client) -> tuple[str, int]:
    host, _, port = client.http_address.rpartition(":")
    return host, int(port)


def read_all(raw: socket.socket) -> bytes:
    parts = []
    while part := raw.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


class ResetTransport(asyncio.Transport):
    """A connection that its client has reset, which the event loop does not know yet."""

    aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write_eof(self) -> None:
        raise OSError("Transport endpoint is not connected")

    def abort(self) -> None:
        self.aborted = True


def test_a_connection_that_was_reset_is_closed_and_nothing_is_raised() -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("nothing was asked")

    loop = asyncio.new_event_loop()
    calls = connection.Calls({}, never, lambda *_: None, Gate(), lambda: 0)
    reset, transport = connection.RestConnection(Desk(loop, 1, 1, "", 1), calls), ResetTransport()
    reset.connection_made(transport)
    reset.data_received(b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n")
    assert transport.aborted
    loop.close()
