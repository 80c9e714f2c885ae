"""One connection of a client over HTTP/1.1: a request at a time, each read within limits, and answered when its call has ended.

h11 knows HTTP. Here is what it leaves open: how much may come, how fast, and what becomes of a client that does not keep to it.
Everything runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

import h11
from dnnapi.inference import grpc_service_pb2 as inference

from dnnserve.catalog import shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.authorization import Objection
from dnnserve.front.call import Call, Methods
from dnnserve.front.gate import Gate
from dnnserve.front.inference import INFERENCE_SERVICE
from dnnserve.front.rest.call import Failure, RestCall
from dnnserve.front.rest.routes import POSTED, Refusal, Route, find_route
from dnnserve.front.rest.transcoding import (
    Binary,
    Body,
    infer_body,
    infer_message,
    plain_body,
    region_message,
    repository_message,
    route_message,
)

__all__ = ["Connection", "Desk"]

_log = logging.getLogger(__name__)

_HEAD_S = 10.0
_IDLE_S = 60.0
_LINGER_S = 2.0
_SLOWEST_BODY = 64 << 10  # bytes a second
_AHEAD_BYTES = 64 << 10
_JSON_LENGTH = "Inference-Header-Content-Length"
_NEVER = float("inf")
_Headers = list[tuple[str, str]]


@dataclass(slots=True, eq=False)
class Desk:
    """What all connections of a server share. Owned by the event loop's thread; not checked.

    Args:
        loop: The event loop.
        methods: Handlers by path, gRPC's.
        refuse: Ends a call whose request was not looked at.
        objection: What is said against a request before its body is read.
        gate: Counts the calls whose request has come.
        clock: Monotonic nanoseconds, the scheduler's.
        max_connections: Open at the same time, those included that are being taken in.
        max_body_bytes: Of a request.
        max_held_bytes: Of the bodies of all requests that have come or are coming.
        connections: Those that are open.
        greeted: Those that are being taken in: their TLS handshakes go on.
        held_bytes: What is held now.
        leaving: Whether clients are asked to go elsewhere.
    """

    loop: asyncio.AbstractEventLoop
    methods: Methods
    refuse: Callable[[Call, Exception], None]
    objection: Objection
    gate: Gate
    clock: Callable[[], int]
    max_connections: int
    max_body_bytes: int
    max_held_bytes: int
    connections: set[Connection] = field(default_factory=set)
    greeted: set[Connection] = field(default_factory=set)
    held_bytes: int = 0
    leaving: bool = False


class Connection(asyncio.Protocol):
    """A client's connection. Owned by the event loop's thread; not checked.

    Args:
        desk: What it shares with others.
    """

    _transport: asyncio.Transport

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._parser = h11.Connection(h11.SERVER)
        self._expires = time.monotonic() + _HEAD_S
        self._peer = ""
        self._arrival_ns = 0
        self._route: Route | None = None
        self._head: h11.Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._call: RestCall | None = None
        self._ahead_bytes = 0
        self._blocked = False  # the client does not read its answers
        self._deaf = False  # what still comes is thrown away

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a client in."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._desk.greeted.discard(self)
        peer = transport.get_extra_info("peername")  # None: it has left already
        if peer is None:
            self.abort()
            return
        self._desk.connections.add(self)
        host, port, *_ = peer
        self._peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone, also where it has closed its side alone."""
        self._desk.connections.discard(self)
        self._deaf = True
        if self._call is not None:
            self._call.cancel()
        else:
            self._drop_body()

    def data_received(self, data: bytes) -> None:
        """Read on; while a request is being answered, what comes for the next one is kept, up to a bound."""
        if self._deaf:
            return
        self._parser.receive_data(data)
        if self._call is None and not self._blocked:
            self._advance()
            return
        self._ahead_bytes += len(data)
        if self._ahead_bytes > _AHEAD_BYTES:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The client does not read its answers: it gets no more of them."""
        self._blocked = True

    def resume_writing(self) -> None:
        """It has read them."""
        self._blocked = False
        if self._call is None and not self._deaf:
            self._listen()

    def expire(self, now: float) -> None:
        """End a connection whose time is over."""
        if now < self._expires:
            return
        if self._deaf or self._transport.get_write_buffer_size():
            self._transport.abort()
        elif self._idle:
            self._transport.close()
        else:
            self._refuse(Refusal(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly"))

    def leave(self) -> None:
        """Close the connection, after the answer where there is a request."""
        if self._idle and not self._transport.get_write_buffer_size():
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    @property
    def _idle(self) -> bool:
        """Whether nothing of a request has come."""
        return self._call is None and self._parser.their_state is h11.IDLE and not self._parser.trailing_data[0]

    def _advance(self) -> None:
        """Take what has come, up to the end of one request."""
        try:
            while self._call is None and not self._deaf:
                event = self._parser.next_event()
                if isinstance(event, h11.Request):
                    self._begin(event)
                elif isinstance(event, h11.Data):
                    self._take(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._hand_over()
                elif isinstance(event, h11.ConnectionClosed):
                    self._transport.close()
                    return
                else:  # more is needed
                    return
        except h11.RemoteProtocolError as error:
            self._refuse(Refusal(error.error_status_hint, f"the request is no HTTP/1.1: {error}"))
        except Refusal as refusal:
            self._refuse(refusal)

    def _begin(self, head: h11.Request) -> None:
        self._arrival_ns = self._desk.clock()
        self._expires = time.monotonic() + _HEAD_S
        self._head = head
        self._route = find_route(head.method.decode("latin-1"), head.target.decode("latin-1"))
        self._authorize(self._route, head)
        headers = dict(head.headers)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is compressed; send it as it is")
        self._check_size(int(headers.get(b"content-length", b"0")))
        if self._parser.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[]))

    def _authorize(self, route: Route, head: h11.Request) -> None:
        """Ask whether the request may pass; one that may not is counted and logged as a call."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers]
        error = self._desk.objection(f"/{INFERENCE_SERVICE}/{route.method}", headers)
        if error is None:
            return
        ends: list[bytes | Failure] = []
        self._desk.refuse(RestCall(route.method, self._arrival_ns, self._peer, headers, ends.append), error)
        (failure,) = ends
        assert isinstance(failure, Failure)
        scheme = (("WWW-Authenticate", "Bearer"),) if failure.status == HTTPStatus.UNAUTHORIZED else ()
        raise Refusal(failure.status, failure.text, scheme)

    def _take(self, data: bytes) -> None:
        desk, size = self._desk, len(data)
        self._check_size(self._body_bytes + size)
        if desk.held_bytes + size > desk.max_held_bytes:
            text = f"requests of {desk.held_bytes} bytes are being read or answered, as much as may; retry later"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, text, (("Retry-After", "1"),))
        desk.held_bytes += size
        self._body_bytes += size
        self._body.append(bytes(data))
        self._expires += size / _SLOWEST_BODY

    def _check_size(self, size: int) -> None:
        if size > self._desk.max_body_bytes:
            text = f"the body has {size} bytes; at most {self._desk.max_body_bytes} are read (--max-message-mib)"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)

    def _hand_over(self) -> None:
        """The request has come: its call begins."""
        assert self._route is not None
        assert self._head is not None
        desk, route = self._desk, self._route
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._head.headers]
        body = b"".join(self._body)
        self._body.clear()
        binary = Binary()
        call = RestCall(route.method, self._arrival_ns, self._peer, headers, lambda end: self._ended(end, binary))
        self._call = call
        self._expires = _NEVER
        desk.gate.enter()
        try:
            if route.method == "ModelInfer":
                message, binary = infer_message(route, body, _json_length(dict(headers)))
            elif "SharedMemory" in route.method:
                message = region_message(route, body)
            elif route.method in POSTED:
                message = repository_message(route, body)
            else:
                message = route_message(route)
        except Exception as error:  # noqa: BLE001 - whatever a body does to its reader is its request's error
            desk.refuse(call, error)
            return
        desk.methods[f"/{INFERENCE_SERVICE}/{route.method}"](call, message)

    def _ended(self, end: bytes | Failure, binary: Binary) -> None:
        """The call's end, in whatever thread it came about."""
        try:
            self._desk.loop.call_soon_threadsafe(partial(self._answer, end, binary))
        except RuntimeError:  # the server has stopped without waiting for it
            self._desk.gate.leave()

    def _answer(self, end: bytes | Failure, binary: Binary) -> None:
        assert self._route is not None
        self._call = None
        self._drop_body()
        try:
            if self._deaf:
                return
            if isinstance(end, Failure):
                again = [] if end.retry_after_s is None else [("Retry-After", str(end.retry_after_s))]
                self._respond(end.status, _error(end.text), again)
            else:
                self._respond(*_response(self._route.method, end, binary))
        except Exception:  # noqa: BLE001 - a defect of ours ends its connection, so that nobody waits for ever
            _log.exception("an answer of %s could not be sent", self._route.method)
            self.abort()
            return
        finally:
            self._desk.gate.leave()
        self._listen()

    def _listen(self) -> None:
        """Take the next request, of which a part may have come."""
        if self._parser.our_state is h11.MUST_CLOSE:
            self._close_after_answer()
            return
        if self._parser.our_state is h11.DONE:
            self._parser.start_next_cycle()
            self._head = None
            self._expires = time.monotonic() + _IDLE_S
        if self._blocked:
            return
        self._ahead_bytes = 0
        self._transport.resume_reading()
        self._advance()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what does not become a call. Something of it may be on its way still, so the connection ends."""
        self._drop_body()
        if self._parser.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._respond(refusal.status, _error(str(refusal)), [*refusal.headers, ("Connection", "close")])
        self._close_after_answer()

    def _close_after_answer(self) -> None:
        """End our side, and the other's once it has ended or had time to read: a close would throw away what it has not read."""
        self._deaf = True
        self._expires = time.monotonic() + _LINGER_S
        self._transport.resume_reading()
        if (
            self._transport.get_extra_info("sslcontext") is not None
        ):  # TLS: its own way of closing waits for the client, and reads meanwhile
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection, and the event loop does not know yet
            self.abort()

    def _respond(self, status: int, body: Body, headers: _Headers) -> None:
        binary = body.json_bytes is not None
        headers = [
            ("Content-Type", "application/octet-stream" if binary else "application/json"),
            ("Content-Length", str(len(body.data))),
            *([(_JSON_LENGTH, str(body.json_bytes))] if binary else ()),
            *headers,
        ]
        if self._desk.leaving:
            headers.append(("Connection", "close"))
        events: list[h11.Event] = [h11.Response(status_code=status, headers=headers, reason=_reason(status))]
        if self._head is None or self._head.method != b"HEAD":
            events.append(h11.Data(data=body.data))
        self._send(*events, h11.EndOfMessage())

    def _send(self, *events: h11.Event) -> None:
        self._transport.write(b"".join(self._parser.send(event) or b"" for event in events))

    def _drop_body(self) -> None:
        self._desk.held_bytes -= self._body_bytes
        self._body_bytes = 0
        self._body.clear()


def _json_length(headers: dict[str, str]) -> int | None:
    text = headers.get(_JSON_LENGTH.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidRequestError(f"{_JSON_LENGTH} is {shorten(text)}; send the bytes of the JSON")
    return int(text)


def _response(method: str, serialized: bytes, binary: Binary) -> tuple[int, Body, _Headers]:
    """Status, body and headers for a method's response."""
    if method == "ModelInfer":
        return HTTPStatus.OK, infer_body(serialized, binary), []
    status = HTTPStatus.OK
    if method in ("ServerReady", "ModelReady"):  # the two messages are alike
        ready = inference.ServerReadyResponse.FromString(serialized).ready
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return status, plain_body(serialized, method), []


def _error(text: str) -> Body:
    return Body(json.dumps({"error": text}).encode())


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Client Closed Request"
