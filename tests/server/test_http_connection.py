"""A connection of the HTTP ports by itself, without a socket."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from dnnserve.http.connection import Connection, Desk, Refusal, Reply

ANSWER = Reply(HTTPStatus.OK, "text/plain", b"")
REQUESTS = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n" * 2000


class Transport(asyncio.Transport):
    """Counts nothing, and remembers whether it was asked to read."""

    reads = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write(self, data: Any) -> None:
        pass


class Held(Connection):
    """Answers when it is told to."""

    def look_at(self, head: h11.Request) -> None:
        pass

    def hand_over(self, head: h11.Request, body: bytes) -> None:
        pass

    def refused(self, refusal: Refusal) -> Reply:
        raise AssertionError(refusal)


def test_requests_that_come_ahead_are_bounded_however_many_are_answered() -> None:
    transport, connection = Transport(), Held(Desk(asyncio.new_event_loop(), 1, 1 << 20, "", 1 << 20))
    connection.connection_made(transport)
    for _ in range(20):
        if transport.reads:
            connection.data_received(REQUESTS)
        connection.answer(ANSWER)
    assert len(connection._parser.trailing_data[0]) < 4 * len(REQUESTS)
    while not transport.reads:
        connection.answer(ANSWER)
    connection._desk.loop.close()
