"""Every method of a server, called with what no client should send: messages whose bytes or whose fields are changed, and requests
in JSON. Each call must end once, with an answer or with an error that is the client's own.

    python -m tests.server.fuzz_calls --count 1000000

Messages are handed to the server's own handlers, as front ends do; what frames of HTTP/2 do to gRPC is `test_hostile_frames`.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import shared_memory
from typing import Any

import grpc
import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.v1 import classifier_pb2 as classifier
from dnnserve.errors import RequestError
from dnnserve.front.call import Methods, Trailer
from dnnserve.front.classifier import classifier_methods
from dnnserve.front.front_end import LocalFrontEnd
from dnnserve.front.inference import INFERENCE_SERVICE, MODEL_INFER, inference_methods
from dnnserve.front.rest.routes import find_route
from dnnserve.front.rest.transcoding import infer_body, infer_message
from dnnserve.front.status import status_of
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from PIL import Image

from tests.server.fakes import PATIENCE_S, Lab
from tests.server.serving import infer_request, scores, serving

__all__ = ["KINDS", "fuzz"]

CODE = grpc.StatusCode
FAIR = frozenset(
    {
        *("OK", CODE.INVALID_ARGUMENT.name, CODE.NOT_FOUND.name, CODE.ALREADY_EXISTS.name, CODE.UNIMPLEMENTED.name),
        *(CODE.RESOURCE_EXHAUSTED.name, CODE.DEADLINE_EXCEEDED.name, CODE.FAILED_PRECONDITION.name),
    }
)
"""How a call may end: others say that the server, or a device, has had trouble."""

REGION = f"dnnserve-fuzz-{os.getpid()}"
_MOST_UNANSWERED = 64
_INFER_PATH = "/v2/models/toy/infer"

_WHOLE = (0, 1, -1, 2, 3, 4, 8, 255, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62), (1 << 63) - 1, -(1 << 63))
_FLOATS = (0.0, -0.0, 1e38, math.inf, -math.inf, math.nan, 1e-45)
_NAMES = (
    *("", "toy", "data", "scores", REGION, f"/{REGION}", "FP32", "FP64", "BF16", "BYTES", "UINT8", "INT64", "BOOL"),
    *("1", "0", "-1", "9" * 30, "\0", "größer", "x" * 3000, "../x", "*", "timeout", "priority", "classification"),
    *(
        "shared_memory_region",
        "shared_memory_byte_size",
        "shared_memory_offset",
        "binary_data_size",
        "binary_data_output",
    ),
    *("sequence_id", "unload_dependents", "config"),
)


class Calls:
    """Calls that were begun, and how they ended. Thread-safe: `_changed` guards all of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 0
        self.ends: Counter[str] = Counter()
        self.unfair: list[tuple[str, str, bytes]] = []

    def begin(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._open < _MOST_UNANSWERED, PATIENCE_S), "calls do not end"
            self._open += 1

    def end(self, status: str, text: str, message: bytes, *, again: bool) -> None:
        with self._changed:
            self._open -= 1
            self.ends[status] += 1
            if status not in FAIR or again:
                self.unfair.append((status, text, message))
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self._open, PATIENCE_S), f"{self._open} calls never ended"


class FakeCall:
    """A call that nobody waits for. Thread-safe; only its end changes it."""

    deadline_ns = None
    metadata: Sequence[tuple[str, str | bytes]] = ()
    cancelled = False

    def __init__(self, calls: Calls, method: str, message: bytes, read: Callable[[bytes], object]) -> None:
        self.method = method
        self.arrival_ns = time.monotonic_ns()
        self._calls = calls
        self._message = message
        self._read = read
        self._ended = False
        calls.begin()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def on_cancel(self, act: Callable[[], None]) -> None:
        pass

    def finish(self, response: bytes) -> None:
        try:
            self._read(response)
        except Exception as error:  # noqa: BLE001 - it is told with its message
            self._end("cannot be read", repr(error))
        else:
            self._end("OK", "")

    def fail(self, code: grpc.StatusCode, text: str, trailers: Sequence[Trailer] = ()) -> None:
        self._end(code.name, text)

    def _end(self, status: str, text: str) -> None:
        again, self._ended = self._ended, True
        self._calls.end(status, text, self._message, again=again)


def _image(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)).save(stream, kind)
    return stream.getvalue()


_PNG, _JPEG = _image("PNG"), _image("JPEG")


def _seeds() -> list[tuple[str, Any]]:
    """(path, message) of requests as clients send them."""
    raw = infer_request()
    shape = tuple(raw.inputs[0].shape)
    several = infer_request(2.0, 3)
    several.parameters["timeout"].int64_param = 500_000
    several.parameters["priority"].uint64_param = 1
    several.outputs.add(name="scores").parameters["classification"].int64_param = 2
    typed = inference.ModelInferRequest(model_name="toy", id="typed")
    typed.inputs.add(name="data", datatype="FP32", shape=shape).contents.fp32_contents.extend([0.5] * math.prod(shape))
    files = inference.ModelInferRequest(model_name="toy")
    files.inputs.add(name="data", datatype="BYTES", shape=[2])
    files.raw_input_contents.append(b"".join(len(each).to_bytes(4, "little") + each for each in (_PNG, _JPEG)))
    shared = inference.ModelInferRequest(model_name="toy")
    for tensor, nbytes in (
        (shared.inputs.add(name="data", datatype="FP32", shape=shape), 4 * math.prod(shape)),
        (shared.outputs.add(name="scores"), 12),
    ):
        tensor.parameters["shared_memory_region"].string_param = REGION
        tensor.parameters["shared_memory_byte_size"].int64_param = nbytes
    images = classifier.ClassifyRequest(model_name="toy", images=[_PNG, _JPEG], top_k=2, request_id="images")
    pixels = classifier.Tensor(datatype="FP32", shape=shape, contents=bytes(4 * math.prod(shape)))
    others = {
        "ModelStatistics": inference.ModelStatisticsRequest(name="toy", version="1"),
        "ModelMetadata": inference.ModelMetadataRequest(name="toy"),
        "ModelConfig": inference.ModelConfigRequest(name="toy"),
        "ModelReady": inference.ModelReadyRequest(name="toy"),
        "RepositoryIndex": inference.RepositoryIndexRequest(ready=True),
        "RepositoryModelLoad": inference.RepositoryModelLoadRequest(model_name="other"),
        "RepositoryModelUnload": inference.RepositoryModelUnloadRequest(model_name="other"),
        "SystemSharedMemoryStatus": inference.SystemSharedMemoryStatusRequest(name=REGION),
        "SystemSharedMemoryRegister": _registration(),
        "SystemSharedMemoryUnregister": inference.SystemSharedMemoryUnregisterRequest(name=REGION),
        "CudaSharedMemoryRegister": inference.CudaSharedMemoryRegisterRequest(),
    }
    infers = [(MODEL_INFER, message) for message in (raw, several, typed, files, shared)]
    classifies = [
        ("/dnnapi.v1.ClassifierService/Classify", message)
        for message in (images, classifier.ClassifyRequest(model_name="toy", tensor=pixels))
    ]
    model = ("/dnnapi.v1.ClassifierService/GetModel", classifier.GetModelRequest(model_name="toy"))
    return [*infers * 3, *classifies * 2, model, *((f"/{INFERENCE_SERVICE}/{n}", m) for n, m in others.items())]


def _registration() -> Any:
    return inference.SystemSharedMemoryRegisterRequest(name=REGION, key=f"/{REGION}", byte_size=4096)


def _bytes(dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Messages whose bytes are changed."""
    seeds = [(path, message.SerializeToString()) for path, message in _seeds()]
    while True:
        path, message = dice.choice(seeds)
        changed = bytearray(message)
        for _ in range(dice.randrange(1, 5)):
            place = dice.randrange(len(changed) + 1)
            match dice.randrange(5):
                case 0 if place < len(changed):
                    changed[place] = dice.randrange(256)
                case 1:
                    del changed[place : place + dice.randrange(1, 5)]
                case 2:
                    changed[place:place] = dice.randbytes(dice.randrange(1, 5))
                case 3:
                    del changed[place:]
                case _:
                    changed[place:place] = bytes([dice.choice((0x80, 0xFF))] * dice.randrange(1, 10))
        yield path, bytes(changed)


def _fields(dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Messages of which every field may have a value that is odd."""
    seeds = _seeds()
    while True:
        path, message = dice.choice(seeds)
        changed = type(message)()
        changed.CopyFrom(message)
        for _ in range(dice.randrange(1, 4)):
            _change(changed, dice)
        yield path, changed.SerializeToString()


def _change(message: Any, dice: random.Random) -> None:
    there = [field for field, _ in message.ListFields()]
    all_fields = list(message.DESCRIPTOR.fields)
    if not all_fields:
        return
    field = dice.choice(there if there and dice.random() < 0.7 else all_fields)
    value: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = dice.choice([*value, dice.choice(_NAMES)])
        entry = field.message_type.fields_by_name["value"]
        if entry.message_type is None:
            value[key] = _odd(entry, dice)
        else:
            _change(value[key], dice)
    elif isinstance(value, Message):
        _change(value, dice)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        _change_elements(value, field, dice)
    else:
        setattr(message, field.name, _odd(field, dice))


def _change_elements(value: Any, field: Any, dice: random.Random) -> None:
    if len(value) and dice.random() < 0.2:
        del value[dice.randrange(len(value))]
    elif field.message_type is not None:
        _change(value.add() if not len(value) or dice.random() < 0.3 else dice.choice(value), dice)
    elif len(value) and dice.random() < 0.6:
        value[dice.randrange(len(value))] = _odd(field, dice)
    else:
        value.append(_odd(field, dice))


def _odd(field: FieldDescriptor, dice: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return dice.random() < 0.5
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return dice.choice(_FLOATS)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return dice.choice(
                (b"", bytes(96), bytes(24), bytes(2000), _PNG, _JPEG, dice.randbytes(dice.randrange(300)))
            )
        case FieldDescriptor.CPPTYPE_STRING:
            return dice.choice(_NAMES)
    bits = 32 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    unsigned = field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return min(max(dice.choice(_WHOLE), low), high)


def _json(dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Bodies of requests over HTTP, which are JSON or nearly so, some with bytes behind it."""
    shape = list(infer_request().inputs[0].shape)
    values = [0.5] * math.prod(shape)
    tensor = {"name": "data", "datatype": "FP32", "shape": shape, "parameters": {}, "data": values}
    output = {"name": "scores", "parameters": {"classification": 2, "binary_data": True}}
    request = {"id": "1", "parameters": {"timeout": 500_000}, "inputs": [tensor], "outputs": [output]}
    while True:
        changed = json.loads(json.dumps(request))
        for _ in range(dice.randrange(4)):
            changed = _change_json(changed, dice)
        body = bytearray(json.dumps(changed).encode())
        if dice.random() < 0.2:
            body[dice.randrange(len(body))] = dice.randrange(256)
        if dice.random() < 0.2:
            body += bytes(dice.choice((1, 4, 96)))
        yield _INFER_PATH, bytes(body)


def _change_json(value: Any, dice: random.Random) -> Any:
    odd: Sequence[Any] = (None, True, [], {}, [[1]], {"a": 1}, 1 << 70, 3.5, "\ud800", *_WHOLE, *_FLOATS, *_NAMES)
    if not isinstance(value, dict | list) or not value or dice.random() < 0.1:
        return json.loads(json.dumps(dice.choice(odd)))
    key: Any = dice.choice([*value]) if isinstance(value, dict) else dice.randrange(len(value))
    draw = dice.random()
    if draw < 0.15:
        del value[key]
    elif draw < 0.3 and isinstance(value, dict):
        value[dice.choice(_NAMES)] = dice.choice(odd)
    else:
        value[key] = _change_json(value[key], dice)
    return value


KINDS: dict[str, Callable[[random.Random], Iterator[tuple[str, bytes]]]] = {
    "bytes": _bytes,
    "fields": _fields,
    "json": _json,
}


def fuzz(kind: str, count: int, seed: int) -> Counter[str]:
    """Make so many calls; how they ended, by status.

    Raises:
        AssertionError: one ended unfairly, twice or never, or the server does not answer the next.
    """
    messages = KINDS[kind](random.Random(seed))
    with _shared(), serving(Lab(), shared_memory=True, front_end="auto") as (server, client):
        front = server._front
        assert isinstance(front, LocalFrontEnd)
        assert front._service is not None
        methods = {**inference_methods(front._service), **classifier_methods(front._service)}
        calls = Calls()
        for number in range(count):
            if number % 500 == 0:  # some unregister it
                _send(
                    methods,
                    calls,
                    f"/{INFERENCE_SERVICE}/SystemSharedMemoryRegister",
                    _registration().SerializeToString(),
                )
            _send(methods, calls, *next(messages))
        calls.wait()
        assert not calls.unfair, calls.unfair[:3]
        assert scores(client.send(7.0).result(PATIENCE_S)) == [[7.0, 14.0, 21.0]]
        assert server.scheduler.in_flight == 0
        assert server.ready
    return calls.ends


def _send(methods: Methods, calls: Calls, path: str, message: bytes) -> None:
    """Make one call, as a front end does it."""
    if path != _INFER_PATH:
        methods[path](FakeCall(calls, path.rpartition("/")[2], message, lambda _: None), message)
        return
    try:
        length = message.rfind(b"}") + 1 if message.endswith(b"\0") else None
        translated, binary = infer_message(find_route("POST", path), message, length)
    except RequestError as error:
        FakeCall(calls, "ModelInfer", message, lambda _: None).fail(status_of(error).code, str(error))
        return
    methods[MODEL_INFER](FakeCall(calls, "ModelInfer", message, lambda end: infer_body(end, binary)), translated)


@contextmanager
def _shared() -> Iterator[None]:
    """A region of shared memory for requests to speak of."""
    memory = shared_memory.SharedMemory(REGION, create=True, size=4096)
    try:
        yield
    finally:
        memory.close()
        memory.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30_000, help="calls, a third of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the changes")
    options = parser.parse_args()
    for kind in KINDS:
        started, count = time.perf_counter(), -(-options.count // len(KINDS))
        ends = fuzz(kind, count, options.seed)
        print(f"{kind}: {count} calls in {time.perf_counter() - started:.0f} s: {dict(ends)}", flush=True)


if __name__ == "__main__":
    main()
