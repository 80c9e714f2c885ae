"""A client of one unary method that costs a tenth of `core_client`, for more calls a second than that can send beside a server.

An open loop that shares its cores with the server, and takes as long to send a call as the server takes to refuse it, measures
itself. Here a call is two frames of HTTP/2 (RFC 9113), written once but for the stream's number and the time limit, and what is
due by then leaves by one system call; one thread has all connections. As gRPC's own clients do, it names header fields by their
place in the connection's table (RFC 7541), says what is left of a deadline when the call leaves, and resets a call whose deadline
passes. An answer is what has data; the status of a call that has none is not read. Only for messages that fit into one frame.
"""

from __future__ import annotations

import heapq
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence

from benchmarks.core_client import Taken

__all__ = ["keep_in_flight", "send_at"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_CANCEL = 8
_INITIAL_WINDOW_SIZE = 4
_LARGEST_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535
_LARGEST_FRAME = 1 << 14
_STATIC_FIELDS = 61

_HEADER = struct.Struct(">BHBBI")
"""Of a frame: the length in two parts, type, flags, stream."""
_NUMBER = struct.Struct(">I")

_RECEIVED_BYTES = 1 << 18
_CONNECTED_S = 20.0
_LOST_S = 5.0
"""After the last call was sent, those that have no deadline end within this time, or count as failed."""
_LEAST_SLEEP_S = 2e-4
"""What comes or is due meanwhile is done together: to wake up for a call costs more than the call."""


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    nbytes = len(payload)
    return _HEADER.pack(nbytes >> 16, nbytes & 0xFFFF, kind, flags, stream) + payload


def _text(value: bytes) -> bytes:
    assert len(value) < 0x7F, value
    return bytes([len(value)]) + value


class _Connection:
    """Calls over one connection. Owned by one thread; not checked. All times are of `time.perf_counter`.

    Args:
        address: The server's.
        method: Its path.
        message: What every call sends.
        on_end: Told of each call's end.

    Attributes:
        socket: Non-blocking.
        open: Calls that have not ended: of each stream, when it was due and its deadline.
        taken: What became of those that have.
    """

    def __init__(
        self, address: str, method: str, message: bytes, on_end: Callable[[_Connection], None] = lambda _: None
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), _CONNECTED_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fields = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", address.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"frame-client"),
            (b"grpc-timeout", b"1S"),
        )
        # In full for the first call, and remembered by the server; the last has the lowest place then.
        newest = _STATIC_FIELDS + 1
        self._in_full = b"".join(b"\x40" + _text(name) + _text(value) for name, value in fields)
        self._fields = bytes(0x80 | newest + place for place in range(len(fields) - 1, 0, -1))
        self._timeout = bytes([0x0F, newest - 0x0F])  # a value for the field of that place which is not remembered
        body = b"\0" + _NUMBER.pack(len(message)) + message
        if len(body) > _LARGEST_FRAME:
            raise ValueError(f"a message of {len(message)} bytes does not fit into a frame of {_LARGEST_FRAME}")
        self._body, self._nbytes = body, len(body)
        self._body_header = struct.pack(">BHBB", 0, len(body), _DATA, _END_STREAM)
        self._on_end = on_end
        self._window = _FIRST_WINDOW
        self._next_stream = 1
        self._received = b""
        self._held: deque[tuple[float, float | None]] = deque()  # until the server takes more bytes
        self._deadlines: list[tuple[float, int]] = []
        self._answering: set[int] = set()
        self.open: dict[int, tuple[float, float | None]] = {}
        self.taken = Taken()
        self._unsent = [
            _PREFACE,
            _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW)),
            _frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(_LARGEST_WINDOW - _FIRST_WINDOW)),
        ]
        self.flush()
        self.receive()  # the server's settings
        self.socket.setblocking(False)

    @property
    def ended(self) -> bool:
        """Whether every call has."""
        return not self.open and not self._held

    @property
    def unsent(self) -> bool:
        """Whether there are bytes that the socket did not take."""
        return bool(self._unsent)

    @property
    def next_deadline(self) -> float:
        """The next one that may pass."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def call(self, due: float, deadline: float | None = None) -> None:
        """Let a call go with the next `flush`; its seconds count from when it was due."""
        if self._window < self._nbytes:
            self._held.append((due, deadline))
            return
        stream = self._next_stream
        if stream == 1:
            block = self._in_full
        elif deadline is None:
            block = self._fields
        else:
            left_us = int(1e6 * (deadline - time.perf_counter()))
            if left_us <= 0:
                self._end(due, answered=False)
                return
            block = self._fields + self._timeout + _text(b"%du" % left_us)
        self._next_stream += 2
        self._window -= self._nbytes
        self.open[stream] = due, deadline
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, stream))
        self._unsent += (
            _frame(_HEADERS, _END_HEADERS, stream, block),
            self._body_header,
            _NUMBER.pack(stream),
            self._body,
        )

    def expire(self) -> None:
        """Reset calls whose deadlines have passed."""
        now, deadlines = time.perf_counter(), self._deadlines
        while deadlines and deadlines[0][0] <= now:
            stream = heapq.heappop(deadlines)[1]
            if stream in self.open:
                self._unsent.append(_frame(_RESET, 0, stream, _NUMBER.pack(_CANCEL)))
                self._close(stream, answered=False)

    def flush(self) -> None:
        """Send what is there, as far as the socket takes it."""
        if self._unsent:
            data = b"".join(self._unsent)
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                sent = 0
            self._unsent = [data[sent:]] if sent < len(data) else []

    def receive(self) -> None:
        """Read what has come.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        received = self.socket.recv(_RECEIVED_BYTES)
        if not received:
            raise ConnectionError(f"the server closed the connection, on which {len(self.open)} calls were open")
        data = self._received + received
        at, end = 0, len(data)
        while end - at >= _HEADER.size:
            high, low, kind, flags, stream = _HEADER.unpack_from(data, at)
            begin = at + _HEADER.size
            behind = begin + (high << 16) + low
            if behind > end:
                break
            at = behind
            if kind in (_HEADERS, _RESET):
                if (flags & _END_STREAM or kind == _RESET) and stream in self.open:
                    self._close(stream, answered=stream in self._answering)
                    self._answering.discard(stream)
            elif kind == _DATA:
                if stream in self.open:
                    self._answering.add(stream)
            else:
                self._control(kind, flags, stream, data[begin:behind])
        self._received = data[at:]

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE and stream == 0:
            self._window += _NUMBER.unpack(payload)[0]
            held, self._held = self._held, deque()
            for due, deadline in held:
                self.call(due, deadline)
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._unsent.append(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GO_AWAY:
            raise ConnectionError(f"the server said goodbye: {payload[8:].decode(errors='replace')}")

    def _close(self, stream: int, *, answered: bool) -> None:
        due, deadline = self.open.pop(stream)
        took_s = time.perf_counter() - due
        if answered:
            self.taken.seconds.append(took_s)
        self._end(due, answered=answered, in_time=deadline is None or due + took_s <= deadline)

    def _end(self, due: float, *, answered: bool, in_time: bool = False) -> None:
        if not answered:
            self.taken.failed += 1
        if answered and in_time:
            self.taken.in_time += 1
        else:
            self.taken.missed.append(due)
        self._on_end(self)


def keep_in_flight(
    address: str, method: str, message: bytes, connections: int, in_flight: int, seconds: float
) -> Taken:
    """Keep so many calls in flight for a while."""
    end = time.perf_counter() + seconds

    def go_on(connection: _Connection) -> None:
        if (now := time.perf_counter()) < end:
            connection.call(now)

    links = [_Connection(address, method, message, go_on) for _ in range(connections)]
    for index in range(in_flight):
        links[index % connections].call(time.perf_counter())
    _serve(links, lambda: None if time.perf_counter() >= end else end)
    return _close(links)


def send_at(
    address: str, method: str, message: bytes, connections: int, calls: Sequence[tuple[float, float | None]]
) -> Taken:
    """Send calls at these seconds after the start, each with its deadline, whatever becomes of those before; both count from when
    it was due.
    """
    links = [_Connection(address, method, message) for _ in range(connections)]
    began, place = time.perf_counter() + 0.05, 0

    def send() -> float | None:
        nonlocal place
        now = time.perf_counter()
        while place < len(calls):
            at_s, deadline_s = calls[place]
            due = began + at_s
            if due > now:
                return due
            links[place % connections].call(due, None if deadline_s is None else due + deadline_s)
            place += 1
        return None

    _serve(links, send)
    taken = _close(links)
    taken.missed = [due - began for due in taken.missed]
    return taken


def _serve(links: Sequence[_Connection], send: Callable[[], float | None]) -> None:
    """Send and receive until nothing is left to send and every call has ended.

    Args:
        links: The connections.
        send: Sends what is due; gives the moment of the next call, None when there is none.
    """
    lost = float("inf")
    while True:
        due = send()
        for link in links:
            link.expire()
            link.flush()
        if due is None:
            now = time.perf_counter()
            lost = min(lost, now + _LOST_S)
            if now > lost or all(link.ended for link in links):
                return
        wake = min([lost if due is None else due, *[link.next_deadline for link in links]])
        time.sleep(_LEAST_SLEEP_S)
        left_s = max(0.0, wake - time.perf_counter())
        readable, _, _ = select.select(
            [link.socket for link in links], [link.socket for link in links if link.unsent], [], left_s
        )
        for link in links:
            if link.socket in readable:
                link.receive()


def _close(links: Sequence[_Connection]) -> Taken:
    taken = Taken()
    for link in links:
        link.socket.close()
        taken.join(link.taken)
        taken.failed += len(link.open)
        taken.missed += [due for due, _ in link.open.values()]
    return taken
