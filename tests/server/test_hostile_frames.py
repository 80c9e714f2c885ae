"""Clients that speak HTTP/2 as no client of gRPC does: the next call is answered, and nothing of theirs is left."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from dnnserve.app import Server
from dnnserve.front.front_end import LocalFrontEnd

from tests.server.fakes import PATIENCE_S, Lab, wait_until
from tests.server.serving import Client, front_end, infer_request, scores, serving
from tests.server.test_connections import HELLO

__all__ = ["front_end"]
pytestmark = pytest.mark.usefixtures("front_end")

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

# RFC 9113, 6.
DATA, HEADERS, RST_STREAM = 0, 1, 3
END_STREAM, END_HEADERS = 1, 4
FEW = 8
"""Descriptors that gRPC opens once, whenever it likes; whoever leaves some behind for each connection or call leaves hundreds."""

FRAME_TYPES = 14  # ten that there are, and some that there are not
CANCEL = struct.pack(">I", 8)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: str, **others: str) -> bytes:
    """A header block: literals that are never indexed (RFC 7541, 6.2.3), each of less than 127 bytes."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    fields |= {name.replace("_", "-"): value for name, value in others.items()}
    texts = [text.encode() for field in fields.items() for text in field]
    sized = [bytes([len(text)]) + text for text in texts]
    return b"".join(b"\x10" + name + value for name, value in zip(sized[::2], sized[1::2], strict=True))


@contextlib.contextmanager
def heard(address: str) -> Iterator[socket.socket]:
    """A connection that has introduced itself, and reads and forgets what it is told."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as client:
        client.sendall(HELLO)

        def read() -> None:
            with contextlib.suppress(OSError):
                while client.recv(1 << 16):
                    pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield client
        finally:
            with contextlib.suppress(OSError):  # the server has closed it
                client.shutdown(socket.SHUT_WR)
            reader.join(PATIENCE_S)


def send_all(address: str, frames: list[bytes], in_one: int) -> None:
    """Send frames, so many over one connection, of which the server reads no more when it has seen enough."""
    for first in range(0, len(frames), in_one):
        with heard(address) as client, contextlib.suppress(OSError):
            client.sendall(b"".join(frames[first : first + in_one]))


def nothing_is_left(server: Server, descriptors: int) -> bool:
    front = server._front
    assert isinstance(front, LocalFrontEnd)
    grpc_server = front._server
    assert grpc_server._streams is not None
    left = [
        *(
            front.inside,
            server.scheduler.in_flight,
            grpc_server._streams._places._taken,
            grpc_server.health._unread._taken,
        ),
        *(len(grpc_server.health._watches), grpc_server._server._state.active_rpc_count),  # type: ignore[attr-defined]
        *(0 if grpc_server._lane is None else grpc_server._lane.open, max(0, open_files() - descriptors - FEW)),
    ]
    return not any(left)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_answered(client: Client) -> None:
    assert scores(client.send(7.0).result(PATIENCE_S)) == [[7.0, 14.0, 21.0]]


def is_answered_after_others(client: Client) -> bool:
    """Whether a call is answered, and not refused because calls that were reset still count: their ends wait for a thread."""
    try:
        is_answered(client)
    except grpc.RpcError as error:
        if not isinstance(error, grpc.Call) or error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return False
    return True


@pytest.mark.parametrize("path", [INFER, STREAM, WATCH, REFLECTION])
def test_calls_that_are_reset_at_once_leave_nothing(path: str) -> None:
    message = infer_request().SerializeToString() if path in (INFER, STREAM) else b""
    data = struct.pack(">BI", 0, len(message)) + message
    with serving(Lab()) as (server, client):
        is_answered(client)
        before = open_files()
        for _ in range(10):
            streams = range(1, 601, 2)
            opened = {stream: frame(HEADERS, END_HEADERS, stream, headers(path)) for stream in streams}
            for stream in streams[::3]:  # of some the request comes too
                opened[stream] += frame(DATA, END_STREAM, stream, data)
            resets = {stream: frame(RST_STREAM, 0, stream, CANCEL) for stream in streams}
            at_once = [opened[stream] + resets[stream] for stream in streams[:100]]
            later = [opened[stream] for stream in streams[100:]] + [resets[stream] for stream in streams[100:]]
            send_all(server.addresses.grpc, at_once + later, 500)
        wait_until(lambda: is_answered_after_others(client))
        wait_until(lambda: nothing_is_left(server, before))


def test_frames_that_make_no_sense_harm_nobody_else() -> None:
    dice = random.Random(13)

    def random_frame() -> bytes:
        kind, stream = dice.randrange(FRAME_TYPES), dice.choice([0, 1, 2, 3, 5, 1 << 31, dice.getrandbits(32)])
        payload = headers(INFER) if kind == HEADERS and dice.random() < 0.5 else dice.randbytes(dice.randrange(64))
        return frame(kind, dice.choice([0, END_STREAM, END_HEADERS, 5, dice.getrandbits(8)]), stream, payload)

    frames = [random_frame() for _ in range(3000)]
    frames += [one[: dice.randrange(len(one))] for one in frames[:200]]  # and some that do not end
    with serving(Lab()) as (server, client):
        is_answered(client)
        before = open_files()
        send_all(server.addresses.grpc, frames, 6)
        is_answered(client)
        wait_until(lambda: nothing_is_left(server, before))


def test_what_is_no_http2_is_closed() -> None:
    dice = random.Random(14)
    with serving(Lab()) as (server, client):
        host, port = server.addresses.grpc.split(":")
        before = open_files()
        for said in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b"", HELLO[::-1]) * 25:
            with socket.create_connection((host, int(port)), PATIENCE_S) as raw, contextlib.suppress(ConnectionError):
                raw.sendall(said + dice.randbytes(64))
                while raw.recv(1 << 16):
                    pass
        is_answered(client)
        wait_until(lambda: nothing_is_left(server, before))
