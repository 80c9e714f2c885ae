"""The scheduler's end of the channel: one for each front end's process."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dnnserve.channel import messages
from dnnserve.envelope import Answer, Completion, InferenceRequest
from dnnserve.processes.link import Link
from dnnserve.processes.shared_buffer import SharedBuffer

__all__ = ["Port", "Scheduling"]

_MOST_TOGETHER = 256


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

    Completions are sent by a thread of its own: who completes a batch must not wait for a front end that does not read.

    Args:
        scheduler: Where requests go.
        link: To the front end.
        arena: The front end's, mapped here.
    """

    def __init__(self, scheduler: Scheduling, link: Link, arena: SharedBuffer) -> None:
        self._scheduler = scheduler
        self._link = link
        self._bytes = arena.bytes
        self._lock = threading.Lock()
        self._tickets: dict[int, int] = {}  # the scheduler's, by the front end's
        self._offsets: dict[
            int, tuple[int, int]
        ] = {}  # the front end's ticket and the place of its rows, by the scheduler's
        self._outbox: queue.SimpleQueue[messages.Answered | messages.Refused | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name="dnnserve-completions", daemon=True)
        self._sender.start()

    def submit(self, message: messages.Submit) -> None:
        """Queue a request."""
        dtype = np.uint8 if message.pixels else np.float32
        nbytes = math.prod(message.shape) * np.dtype(dtype).itemsize
        rows = self._bytes[message.offset : message.offset + nbytes].view(dtype).reshape(message.shape)
        request = InferenceRequest(
            *(message.model, rows, message.arrival_ns, message.deadline_ns, self._deliver, message.id)
        )
        with self._lock:
            self._tickets[message.ticket] = request.ticket
            self._offsets[request.ticket] = message.ticket, message.offset
        self._scheduler.submit(request)

    def cancel(self, message: messages.Cancel) -> None:
        """Give a request up."""
        with self._lock:
            ticket = self._tickets.get(message.ticket)
        if ticket is not None:
            self._scheduler.cancel(ticket)

    def close(self) -> None:
        """Give up what the front end still waits for: it has gone."""
        with self._lock:
            waiting = list(self._tickets.values())
        for ticket in waiting:
            self._scheduler.cancel(ticket)
        self._outbox.put(None)
        self._sender.join()

    def _deliver(self, completions: Sequence[Completion]) -> None:
        """The sink of every request of this front end."""
        for completion in completions:
            with self._lock:
                ticket, offset = self._offsets.pop(completion.request.ticket)
                del self._tickets[ticket]
            outcome = completion.outcome
            if isinstance(outcome, Answer):
                outputs, times = outcome.outputs, outcome.times
                place = self._bytes[offset : offset + outputs.nbytes].view(np.float32)
                place[...] = outputs.reshape(-1)  # the rows have been read
                stages = (times.taken_ns, times.staged_ns, times.inferred_ns, times.finished_ns)
                answered = (ticket, outputs.shape, outcome.device, outcome.batch_rows, stages, completion.finished_ns)
                self._outbox.put(messages.Answered(*answered))
            else:
                kind, after_ms = type(outcome).__name__, outcome.retry_after_ms
                self._outbox.put(messages.Refused(ticket, kind, str(outcome), after_ms, completion.finished_ns))

    def _send(self) -> None:
        open_ = True
        while open_:
            outcomes = [self._outbox.get()]
            with contextlib.suppress(queue.Empty):
                while len(outcomes) < _MOST_TOGETHER:
                    outcomes.append(self._outbox.get_nowait())
            open_ = None not in outcomes
            with contextlib.suppress(OSError):  # it has gone, and whoever listens to it finds out
                self._link.send(messages.Completed([one for one in outcomes if one is not None]))
