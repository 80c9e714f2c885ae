"""One unary RPC as its handler sees it, whichever front end took it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import grpc

__all__ = ["Arrived", "Call", "Handler", "Methods", "Trailer", "deadline_after"]

_NO_DEADLINE_S = 10 * 365 * 86400  # gRPC gives an RPC without a deadline the end of time as one

Trailer = tuple[str, str]
"""A key of trailing metadata and its value."""


class Arrived(Protocol):
    """What is known of a unary RPC before its request has come. Thread-safe."""

    @property
    def method(self) -> str:
        """The method's name without its service."""
        ...

    @property
    def arrival_ns(self) -> int:
        """When its headers came, on the server's monotonic clock."""
        ...

    @property
    def deadline_ns(self) -> int | None:
        """The client's deadline on that clock; None: it has none."""
        ...


class Call(Arrived, Protocol):
    """A unary RPC whose request has come. Thread-safe; it is ended once, by `finish` or by `fail`, from any thread."""

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """What the client sent with its headers."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone away or its deadline has passed, so that nobody waits for the answer."""
        ...

    def peer(self) -> str:
        """The client's address in gRPC's words: ipv4:127.0.0.1:53124."""
        ...

    def on_cancel(self, act: Callable[[], None]) -> None:
        """Act when the call is cancelled, at once if it has been; may also act after its end, or twice. The last one counts."""
        ...

    def finish(self, response: bytes) -> None:
        """Send the response and the status OK. Does not block."""
        ...

    def fail(self, code: grpc.StatusCode, text: str, trailers: Sequence[Trailer] = ()) -> None:
        """Send an error's status. Does not block."""
        ...


Handler = Callable[[Call, bytes], None]
"""Takes a call with its serialized request and ends it, now or later, from any thread. Must not block and must not raise."""

Methods = Mapping[str, Handler]
"""Handlers by path: /package.Service/Method."""


def deadline_after(arrival_ns: int, remaining_s: float) -> int | None:
    """The moment at which so many seconds are over; None where they stand for no deadline."""
    return None if remaining_s > _NO_DEADLINE_S else arrival_ns + int(remaining_s * 1e9)
