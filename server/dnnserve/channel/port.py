"""The scheduler's end of the channel: one for each front end's process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dnnserve.catalog import ModelSpec
from dnnserve.channel.messages import Answered, Outcomes, Refused, Requests
from dnnserve.envelope import Answer, Completion, InferenceRequest
from dnnserve.processes.arena import Arena, ArenaBlock
from dnnserve.processes.outbox import Outbox
from dnnserve.signature import Layout

__all__ = ["Port", "Scheduling"]

_MOST_TOGETHER = 256


class Scheduling(Protocol):
    """What is used here of the scheduler."""

    def submit(self, *requests: InferenceRequest) -> None:
        """Queue requests, whose completions go to their sinks."""
        ...

    def cancel(self, ticket: int) -> None:
        """Complete a request as cancelled, if it has not been completed."""
        ...


class _LentBlock(ArenaBlock):
    """A block of a front end's, which is told when it has it back. Thread-safe: the port's lock guards `users` and `answered`.

    Args:
        port: The front end's.
        ticket: The front end's.

    Attributes:
        users: Devices that hold it.
        answered: Whether its request has been completed.
    """

    __slots__ = ("_port", "answered", "ticket", "users")

    def __init__(self, port: Port, ticket: int, offset: int, layout: Layout, *, pixels: bool) -> None:
        super().__init__(port.arena, offset, layout, pixels=pixels)
        self._port = port
        self.ticket = ticket
        self.users = 0
        self.answered = False

    def hold(self) -> None:
        with self._port.lock:
            self.users += 1

    def release(self) -> None:
        with self._port.lock:
            self.users -= 1
            late = self.answered and not self.users
        if late:
            self._port.free(self)


class Port:
    """Passes a front end's requests to the scheduler and its completions back. Thread-safe: `lock` guards `_tickets`, `_lent` and
    `_closed`.

    A block is the front end's again once its request is completed and no device holds it; the arena is closed when the front end
    has gone and all blocks are back. Who completes a batch sends its outcomes, and does not wait for the front end to read them.

    Args:
        scheduler: Where requests go.
        outbox: To the front end.
        arena: The front end's, mapped here.
        models: By their numbers; others may be added to it later.
    """

    def __init__(self, scheduler: Scheduling, outbox: Outbox, arena: Arena, models: Mapping[int, ModelSpec]) -> None:
        self.arena = arena
        self.lock = threading.Lock()
        self._scheduler = scheduler
        self._outbox = outbox
        self._models = models
        self._sink = self._deliver  # one object: completions are collected by their sinks
        self._tickets: dict[int, int] = {}  # the scheduler's, by the front end's, of what is not completed
        self._lent = 0  # blocks that are not the front end's
        self._closed = False

    def take(self, note: tuple[Any, ...]) -> None:
        """Queue requests and give some up."""
        submits, cancels = Requests(*note)
        if submits:
            requests = [self._request(*fields) for fields in submits]
            with self.lock:
                self._lent += len(requests)
                for fields, request in zip(submits, requests, strict=True):
                    self._tickets[fields[0]] = request.ticket
            self._scheduler.submit(*requests)
        for front_ticket in cancels:
            with self.lock:
                ticket = self._tickets.get(front_ticket)
            if ticket is not None:
                self._scheduler.cancel(ticket)

    def close(self) -> None:
        """Give up what the front end still waits for: it has gone. A second call does nothing."""
        with self.lock:
            waiting = list(self._tickets.values())
        for ticket in waiting:
            self._scheduler.cancel(ticket)
        with self.lock:
            self._closed = True
            self._close_arena()

    def free(self, block: _LentBlock) -> None:
        """A device has let go of a block whose request was completed before."""
        with self.lock:
            self._give_back(1)
        self._tell(Outcomes(freed=(block.ticket,)))

    def _request(
        self,
        ticket: int,
        model: int,
        offset: int,
        rows: int,
        pixels: bool,
        wanted: tuple[int, ...],
        arrival_ns: int,
        deadline_ns: int | None,
        priority: int,
    ) -> InferenceRequest:
        spec = self._models[model]
        layout = spec.signature.layout(rows, pixels=pixels, wanted=wanted)
        block = _LentBlock(self, ticket, offset, layout, pixels=pixels)
        return InferenceRequest(spec.key, block, arrival_ns, deadline_ns, self._sink, priority)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        """The sink of every request of this front end."""
        answered: list[tuple[Answer, int, list[int]]] = []
        refused: list[tuple[Any, ...]] = []
        last: Answer | None = None
        back = 0
        with self.lock:
            for request, outcome, finished_ns in completions:
                block = request.block
                assert isinstance(block, _LentBlock)
                block.answered = True
                del self._tickets[block.ticket]
                back += not block.users
                if isinstance(outcome, Answer):
                    assert not block.users, "a device that answers has let go"
                    if outcome is not last:
                        last = outcome
                        answered.append((outcome, finished_ns, []))
                    answered[-1][2].append(block.ticket)
                else:
                    when = outcome.retry_after_ms, outcome.answer_ns, finished_ns
                    fields = block.ticket, type(outcome).__name__, str(outcome), *when
                    refused.append(tuple(Refused(*fields, block.users > 0)))
            self._give_back(back)
        if answered:
            self._tell(Outcomes(answered=tuple(_answered(*each) for each in answered)))
        for first in range(0, len(refused), _MOST_TOGETHER):
            self._tell(Outcomes(refused=tuple(refused[first : first + _MOST_TOGETHER])))

    def _give_back(self, blocks: int) -> None:
        """So many blocks are the front end's again; called with the lock held."""
        self._lent -= blocks
        self._close_arena()

    def _close_arena(self) -> None:
        if self._closed and not self._lent:
            self.arena.leave()

    def _tell(self, outcomes: Outcomes) -> None:
        self._outbox.note(tuple(outcomes))


def _answered(answer: Answer, finished_ns: int, tickets: Sequence[int]) -> tuple[Any, ...]:
    times = tuple(answer.times)
    return tuple(Answered(tuple(tickets), answer.device, answer.batch_rows, times, finished_ns))  # type: ignore[arg-type]
