"""One connection of a client over HTTP/1.1: a request at a time, each read within limits, and answered when its answer is known.

h11 knows HTTP. Here is what it leaves open: how much may come, how fast, and what becomes of a client that does not keep to it.
What requests are about is known by those who derive from `Connection`. Everything runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

import h11

__all__ = ["Connection", "Desk", "Header", "Refusal", "Reply"]

_HEAD_S = 10.0
_IDLE_S = 60.0
_LINGER_S = 2.0
_SLOWEST_BODY = 64 << 10  # bytes a second
_AHEAD_BYTES = 64 << 10
_NEVER = float("inf")

Header = tuple[str, str]
"""A header's name and value."""


class Refusal(Exception):  # noqa: N818 - HTTP answers with it
    """A request is ended before anything is made of it.

    Args:
        status: Of the answer.
        text: What the client reads.
        headers: Of the answer, beside those that every one has.
    """

    def __init__(self, status: int, text: str, headers: tuple[Header, ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class Reply(NamedTuple):
    """An answer. Immutable.

    Args:
        status: Of HTTP.
        content_type: Of the body.
        body: Its bytes, which a client that asked by HEAD does not get.
        headers: Beside those that every answer has.
    """

    status: int
    content_type: str
    body: bytes
    headers: Sequence[Header] = ()


@dataclass(slots=True, eq=False)
class Desk:
    """What all connections of a port share. Owned by the event loop's thread; not checked.

    Args:
        loop: The event loop.
        max_connections: Open at the same time, those included that are being taken in.
        max_body_bytes: Of a request.
        bound_by: What clients are told of that: " (--flag)".
        max_held_bytes: Of the bodies of all requests that have come or are coming.
        connections: Those that are open.
        greeted: Those that are being taken in: their TLS handshakes go on.
        held_bytes: What is held now.
        leaving: Whether clients are asked to go elsewhere.
    """

    loop: asyncio.AbstractEventLoop
    max_connections: int
    max_body_bytes: int
    bound_by: str
    max_held_bytes: int
    connections: set[Connection] = field(default_factory=set)
    greeted: set[Connection] = field(default_factory=set)
    held_bytes: int = 0
    leaving: bool = False


class Connection(asyncio.Protocol, ABC):
    """A client's connection. Owned by the event loop's thread; not checked.

    Args:
        desk: What it shares with others.
    """

    _transport: asyncio.Transport

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._parser = h11.Connection(h11.SERVER)
        self._expires = time.monotonic() + _HEAD_S
        self._head: h11.Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._answering = False  # a request has come, and has no answer yet
        self._advancing = False  # what has come is being taken
        self._ahead_bytes = 0
        self._blocked = False  # the client does not read its answers
        self._deaf = False  # what still comes is thrown away
        self.peer = ""

    @abstractmethod
    def look_at(self, head: h11.Request) -> None:
        """Judge a request by what stands before its body.

        Raises:
            Refusal: it is not read.
        """

    @abstractmethod
    def hand_over(self, head: h11.Request, body: bytes) -> None:
        """Take a request that has come, and call `answer` or `end_without_answer`, now or later."""

    @abstractmethod
    def refused(self, refusal: Refusal) -> Reply:
        """What a client reads whose request was refused."""

    def give_up(self) -> None:
        """The client of a request that was handed over has gone; it is answered all the same."""

    def answer(self, reply: Reply) -> None:
        """Answer the request that was handed over, and read the next."""
        self._answering = False
        self._drop_body()
        if not self._deaf:
            self._respond(reply)
            self._listen()

    def end_without_answer(self) -> None:
        """Close the connection in place of answering the request that was handed over."""
        self._answering = False
        self._drop_body()
        self.abort()

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
        self.peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone, also where it has closed its side alone."""
        self._desk.connections.discard(self)
        self._deaf = True
        if self._answering:
            self.give_up()
        else:
            self._drop_body()

    def data_received(self, data: bytes) -> None:
        """Read on; while a request is being answered, what comes for the next one is kept, up to a bound."""
        if self._deaf:
            return
        self._parser.receive_data(data)
        if not self._answering and not self._blocked:
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
        if not self._answering and not self._deaf:
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
    def lacks_certificate(self) -> bool:
        """Whether the client was asked for a certificate and has shown none."""
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return tls is not None and tls.context.verify_mode != ssl.CERT_NONE and not tls.getpeercert()

    @property
    def _idle(self) -> bool:
        """Whether nothing of a request has come."""
        return not self._answering and self._parser.their_state is h11.IDLE and not self._parser.trailing_data[0]

    def _advance(self) -> None:
        """Take what has come, up to the end of a request that is not answered at once.

        One that is answered before `hand_over` returns comes back here by `answer`; the loop that handed it over goes on with the
        next, so that the stack is no deeper for requests that come together.
        """
        if self._advancing:
            return
        self._advancing = True
        try:
            while not self._answering and not self._blocked and not self._deaf:
                event = self._parser.next_event()
                if isinstance(event, h11.Request):
                    self._begin(event)
                elif isinstance(event, h11.Data):
                    self._take(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._end()
                elif isinstance(event, h11.ConnectionClosed):
                    self._transport.close()
                    return
                else:  # more is needed
                    return
        except h11.RemoteProtocolError as error:
            self._refuse(Refusal(error.error_status_hint, f"the request is no HTTP/1.1: {error}"))
        except Refusal as refusal:
            self._refuse(refusal)
        finally:
            self._advancing = False

    def _begin(self, head: h11.Request) -> None:
        self._expires = time.monotonic() + _HEAD_S
        self._head = head
        self.look_at(head)
        headers = dict(head.headers)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is compressed; send it as it is")
        self._check_size(int(headers.get(b"content-length", b"0")))
        if self._parser.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[]))

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
            text = f"the body has {size} bytes; at most {self._desk.max_body_bytes} are read{self._desk.bound_by}"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)

    def _end(self) -> None:
        """The request has come."""
        assert self._head is not None
        body = b"".join(self._body)
        self._body.clear()
        self._answering = True
        self._expires = _NEVER
        self.hand_over(self._head, body)

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
        self._advance()
        self._ahead_bytes = len(self._parser.trailing_data[0]) if self._answering else 0
        if self._ahead_bytes <= _AHEAD_BYTES:
            self._transport.resume_reading()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what is not handed over. Something of it may be on its way still, so the connection ends."""
        self._drop_body()
        if self._parser.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            reply = self.refused(refusal)
            self._respond(reply._replace(headers=[*reply.headers, *refusal.headers, ("Connection", "close")]))
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

    def _respond(self, reply: Reply) -> None:
        status = reply.status
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
            *reply.headers,
        ]
        if self._desk.leaving:
            headers.append(("Connection", "close"))
        events: list[h11.Event] = [h11.Response(status_code=status, headers=headers, reason=_reason(status))]
        if self._head is None or self._head.method != b"HEAD":
            events.append(h11.Data(data=reply.body))
        self._send(*events, h11.EndOfMessage())

    def _send(self, *events: h11.Event) -> None:
        self._transport.write(b"".join(self._parser.send(event) or b"" for event in events))

    def _drop_body(self) -> None:
        self._desk.held_bytes -= self._body_bytes
        self._body_bytes = 0
        self._body.clear()


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Client Closed Request"
