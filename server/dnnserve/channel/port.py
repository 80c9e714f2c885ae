"""The scheduler's end of the channel: one for each front end's process."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dnnserve.channel import messages
from dnnserve.envelope import Answer, Completion, InferenceRequest, ModelKey
from dnnserve.processes.link import Link
from dnnserve.processes.shared_buffer import SharedBuffer

__all__ = ["Port", "Scheduling"]

_MOST_TOGETHER = 256

_Outcome = tuple[Any, ...]
"""Fields of `Answered` or of `Refused`."""


class Scheduling(Protocol):
    """What is used here of the scheduler."""

    def submit(self, request: InferenceRequest) -> None:
        """Queue a request, whose completion goes to its sink."""
        ...

    def cancel(self, ticket: int) -> None:
        """Complete a request as cancelled, if it has not been completed."""
        ...


class Port:
    """Passes a front end's requests to the scheduler and its completions back. Thread-safe: `_lock` guards `_tickets`.

    Who completes a batch sends its outcomes, unless the front end has too much to read already: then a thread of the port's waits
    for it, and nobody else does.

    Args:
        scheduler: Where requests go.
        link: To the front end.
        arena: The front end's, mapped here.
        models: By their numbers; others may be added to it later.
    """

    def __init__(self, scheduler: Scheduling, link: Link, arena: SharedBuffer, models: Mapping[int, ModelKey]) -> None:
        self._scheduler = scheduler
        self._link = link
        self._bytes = arena.bytes
        self._models = models
        self._lock = threading.Lock()
        self._tickets: dict[int, int] = {}  # the scheduler's, by the front end's
        self._offsets: dict[
            int, tuple[int, int]
        ] = {}  # the front end's ticket and the place of its rows, by the scheduler's
        self._overflow: queue.SimpleQueue[Sequence[_Outcome] | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_late, name="dnnserve-completions", daemon=True)
        self._sender.start()

    def take(self, note: tuple[Any, ...]) -> None:
        """Queue a request or give one up."""
        if len(note) == 1:
            self._cancel(*note)
        else:
            self._submit(messages.Submit(*note))

    def close(self) -> None:
        """Give up what the front end still waits for: it has gone."""
        with self._lock:
            waiting = list(self._tickets.values())
        for ticket in waiting:
            self._scheduler.cancel(ticket)
        self._overflow.put(None)
        self._sender.join()

    def _submit(self, message: messages.Submit) -> None:
        dtype = np.uint8 if message.pixels else np.float32
        nbytes = math.prod(message.shape) * np.dtype(dtype).itemsize
        rows = self._bytes[message.offset : message.offset + nbytes].view(dtype).reshape(message.shape)
        model = self._models[message.model]
        request = InferenceRequest(
            *(model, rows, message.arrival_ns, message.deadline_ns, self._deliver, message.id, message.priority)
        )
        with self._lock:
            self._tickets[message.ticket] = request.ticket
            self._offsets[request.ticket] = message.ticket, message.offset
        self._scheduler.submit(request)

    def _cancel(self, front_ticket: int) -> None:
        with self._lock:
            ticket = self._tickets.get(front_ticket)
        if ticket is not None:
            self._scheduler.cancel(ticket)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        """The sink of every request of this front end."""
        outcomes = tuple(map(self._outcome, completions))
        for first in range(0, len(outcomes), _MOST_TOGETHER):
            some = outcomes[first : first + _MOST_TOGETHER]
            with contextlib.suppress(OSError):  # it has gone, and whoever listens to it finds out
                if not self._link.note(some, wait=False):
                    self._overflow.put(some)

    def _outcome(self, completion: Completion) -> _Outcome:
        with self._lock:
            ticket, offset = self._offsets.pop(completion.request.ticket)
            del self._tickets[ticket]
        outcome = completion.outcome
        if not isinstance(outcome, Answer):
            kind, after_ms = type(outcome).__name__, outcome.retry_after_ms
            return tuple(messages.Refused(ticket, kind, str(outcome), after_ms, completion.finished_ns))
        outputs, times = outcome.outputs, outcome.times
        place = self._bytes[offset : offset + outputs.nbytes].view(np.float32)
        place[...] = outputs.reshape(-1)  # the rows have been read
        stages = (times.taken_ns, times.staged_ns, times.inferred_ns, times.finished_ns)
        shape, rows, finished_ns = outputs.shape, outcome.batch_rows, completion.finished_ns
        return tuple(messages.Answered(ticket, shape, outcome.device, rows, stages, finished_ns))

    def _send_late(self) -> None:
        while (outcomes := self._overflow.get()) is not None:
            with contextlib.suppress(OSError):
                self._link.note(tuple(outcomes))
