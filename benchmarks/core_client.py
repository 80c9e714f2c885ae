"""A client of one unary method that costs little, to load servers from the machine that they run on.

grpcio's own clients take two to four times the processor time of this one, and then a measurement says more about them than about
the server. One thread a connection waits for answers and sends; a call is one batch of operations and one event. Like the server's
fast lane, it uses grpcio's Cython classes, which no release promises.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # compiled, and in no stub

__all__ = ["Taken", "keep_in_flight", "send_at", "send_at_rate"]

_FIRST_ANSWER_S = 20.0


@dataclass(slots=True)
class Taken:
    """What became of calls. Owned by one thread at a time; not checked."""

    seconds: list[float] = field(default_factory=list)
    """Of each call that was answered."""
    failed: int = 0
    in_time: int = 0
    """Of those that were answered; all where calls have no deadline."""
    missed: list[float] = field(default_factory=list)
    """When those were due that were not answered in time; by `send_at` in seconds after its start."""

    def join(self, other: Taken) -> None:
        """Count another's calls too."""
        self.seconds += other.seconds
        self.failed += other.failed
        self.in_time += other.in_time
        self.missed += other.missed


class _Connection:
    """Calls over one connection, and what became of them. `call` and `handle_event` are called by one thread at a time each.

    Args:
        address: The server's.
        method: Its path.
        message: What every call sends.
    """

    def __init__(self, address: str, method: str, message: bytes) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self._public = grpc.insecure_channel(address, options)
        grpc.channel_ready_future(self._public).result(_FIRST_ANSWER_S)
        self._core = self._public._channel  # type: ignore[attr-defined]
        self._method = method.encode()
        self._message = message
        self.taken = Taken()

    def call(self, started: float, deadline_s: float | None = None) -> None:
        """Send a call, whose time counts from a moment of `time.perf_counter`, and so do its seconds; None: it has no deadline."""
        end = None if deadline_s is None else time.time() + deadline_s - (time.perf_counter() - started)
        operations = (
            cygrpc.SendInitialMetadataOperation(None, 0),
            cygrpc.SendMessageOperation(self._message, 0),
            cygrpc.SendCloseFromClientOperation(0),
            cygrpc.ReceiveInitialMetadataOperation(0),
            cygrpc.ReceiveMessageOperation(0),
            cygrpc.ReceiveStatusOnClientOperation(0),
        )
        flags = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS
        tag = started, deadline_s
        self._core.integrated_call(flags, self._method, None, end, None, None, ((operations, tag),))

    def wait(self) -> None:
        """Wait for the next call to end."""
        event: Any = self._core.next_call_event()
        while event.completion_type == cygrpc.CompletionType.queue_timeout:
            event = self._core.next_call_event()
        started, deadline_s = event.tag
        took_s = time.perf_counter() - started
        answered = event.batch_operations[-1].code() == 0
        if answered:
            self.taken.seconds.append(took_s)
        else:
            self.taken.failed += 1
        if answered and (deadline_s is None or took_s <= deadline_s):
            self.taken.in_time += 1
        else:
            self.taken.missed.append(started)

    def close(self) -> None:
        """Close the connection, over which no call is open."""
        self._public.close()


def keep_in_flight(
    address: str, method: str, message: bytes, connections: int, in_flight: int, seconds: float
) -> Taken:
    """Keep so many calls in flight for a while."""
    end = time.perf_counter() + seconds

    def work(connection: _Connection, share: int) -> None:
        for _ in range(share):
            connection.call(time.perf_counter())
        open_calls = share
        while open_calls:
            connection.wait()
            now = time.perf_counter()
            if now < end:
                connection.call(now)
            else:
                open_calls -= 1

    shares = [in_flight // connections + (index < in_flight % connections) for index in range(connections)]
    return _run([partial(work, share=share) for share in shares if share], address, method, message)


def send_at_rate(address: str, method: str, message: bytes, connections: int, rate: float, seconds: float) -> Taken:
    """Send calls at equal intervals, whatever becomes of those before; the time of each counts from when it was due."""
    return send_at(address, method, message, connections, [(n / rate, None) for n in range(int(rate * seconds))])


def send_at(
    address: str, method: str, message: bytes, connections: int, calls: Sequence[tuple[float, float | None]]
) -> Taken:
    """Send calls at these seconds after the start, each with its deadline, whatever becomes of those before; both count from when
    it was due.
    """
    began = 0.0

    def begin() -> None:
        nonlocal began
        began = time.perf_counter() + 0.05

    def work(connection: _Connection, first: int) -> None:
        mine = calls[first::connections]

        def wait() -> None:
            for _ in mine:
                connection.wait()

        waiting = threading.Thread(target=wait)
        waiting.start()
        for at_s, deadline_s in mine:
            due = began + at_s
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            connection.call(due, deadline_s)
        waiting.join()

    taken = _run([partial(work, first=first) for first in range(connections)], address, method, message, begin)
    taken.missed = [due - began for due in taken.missed]
    return taken


def _run(
    works: list[Callable[[_Connection], None]],
    address: str,
    method: str,
    message: bytes,
    begin: Callable[[], None] = lambda: None,
) -> Taken:
    """Do each of them over a connection of its own, in a thread of its own, once all are connected and it has begun."""
    connections = [_Connection(address, method, message) for _ in works]
    begin()
    threads = [threading.Thread(target=work, args=(each,)) for work, each in zip(works, connections, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = Taken()
    for connection in connections:
        connection.close()
        taken.join(connection.taken)
    return taken
