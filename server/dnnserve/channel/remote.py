"""The front end's end of the channel: it stands where the scheduler would, and where its statistics would."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnnserve.channel import messages
from dnnserve.channel.blocks import Blocks
from dnnserve.envelope import Answer, BatchTimes, Completion, CompletionSink, InferenceRequest, ModelKey
from dnnserve.errors import QueueFullError, UnavailableError
from dnnserve.lifecycle.requests import Answer as Told
from dnnserve.lifecycle.requests import Question
from dnnserve.processes.link import Link
from dnnserve.processes.shared_buffer import SharedBuffer
from dnnserve.statistics import ModelSnapshot

__all__ = ["RemoteRepository", "RemoteScheduler", "RemoteStatistics"]

_RETRY_MS = 20
_PATIENCE_S = 2.0
_MOST_TOGETHER = 1024
_TOLD_EVERY_S = 0.05
_ANSWERED = len(messages.Answered._fields)


class RemoteScheduler:
    """Submits to the scheduler in another process. Thread-safe: `_lock` guards `_blocks` and `_waiting`.

    A request's rows are copied once, into the arena that both processes map; its outputs come back in the same place.

    Args:
        link: To the other process.
        arena: The shared memory, a power of two of bytes.
        clock: Monotonic nanoseconds, which both processes count alike.
    """

    def __init__(self, link: Link, arena: SharedBuffer, clock: Callable[[], int]) -> None:
        self._link = link
        self._bytes = arena.bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._blocks = Blocks(len(arena.bytes))
        self._waiting: dict[int, tuple[InferenceRequest, int]] = {}
        self._models: dict[ModelKey, tuple[int, int]] = {}  # its number, and bytes of an output

    def serve(self, models: messages.Models) -> None:
        """Take requests for these models too."""
        self._models |= {spec.key: (number, 4 * spec.num_classes) for number, spec in models}

    def forget(self, model: ModelKey) -> None:
        """A model is gone; no request for it comes any more."""
        self._models.pop(model, None)

    def submit(self, request: InferenceRequest) -> None:
        """Queue a request, whose completion goes to its sink; a full arena refuses it at once."""
        rows = request.rows
        model, output_bytes = self._models[request.model]
        room = max(rows.nbytes, len(rows) * output_bytes)
        with self._lock:
            offset = self._blocks.take(room)
            if offset is not None:
                self._waiting[request.ticket] = request, offset
        if offset is None:
            error = QueueFullError(
                f"requests that wait fill this front end's {len(self._bytes) >> 20} MiB; retry later"
            )
            error.retry_after_ms = _RETRY_MS
            request.sink([Completion(request, error, self._clock())])
            return
        place = self._bytes[offset : offset + rows.nbytes]
        place.view(rows.dtype).reshape(rows.shape)[...] = rows
        pixels = rows.dtype == np.uint8
        times = request.arrival_ns, request.deadline_ns
        try:
            self._link.note((request.ticket, model, rows.shape, pixels, offset, *times, request.id, request.priority))
        except OSError:
            self.lose("the scheduler's process has ended")

    def cancel(self, ticket: int) -> None:
        """Complete a request as cancelled, if it has not been completed."""
        if ticket in self._waiting:
            with contextlib.suppress(OSError):  # then everything is lost anyway
                self._link.note((ticket,))

    def complete(self, outcomes: Sequence[tuple[Any, ...]]) -> None:
        """Deliver what the scheduler has completed: the fields of `Answered` and `Refused`."""
        by_sink: dict[CompletionSink, list[Completion]] = {}
        for fields in outcomes:
            request, offset = self._waiting[fields[0]]
            completion = (
                self._answered(request, offset, fields) if len(fields) == _ANSWERED else _refused(request, fields)
            )
            by_sink.setdefault(request.sink, []).append(completion)
        with self._lock:
            for fields in outcomes:
                self._blocks.give_back(self._waiting.pop(fields[0])[1])
        for sink, completions in by_sink.items():
            sink(completions)

    def _answered(self, request: InferenceRequest, offset: int, fields: Sequence[Any]) -> Completion:
        _, shape, device, batch_rows, times, finished_ns = fields
        place = self._bytes[offset : offset + 4 * math.prod(shape)]
        outputs = place.view(np.float32).reshape(shape).copy()
        return Completion(request, Answer(outputs, device, batch_rows, BatchTimes(*times)), finished_ns)

    def lose(self, reason: str) -> None:
        """Answer everything that waits as unavailable: nobody else will."""
        with self._lock:
            lost, self._waiting = list(self._waiting.values()), {}
        now_ns = self._clock()
        for request, _ in lost:
            request.sink([Completion(request, UnavailableError(f"{reason}; retry"), now_ns)])


def _refused(request: InferenceRequest, fields: tuple[Any, ...]) -> Completion:
    refused = messages.Refused(*fields)
    return Completion(request, refused.error, refused.finished_ns)


class RemoteStatistics:
    """Counters that are kept in another process. Thread-safe.

    Calls that end are told in bundles, twenty times a second, by a thread of its own: no answer waits for a message about it.

    Args:
        link: To the other process.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ended: queue.SimpleQueue[messages.CallEnded] = queue.SimpleQueue()
        self._snapshots: queue.SimpleQueue[messages.SnapshotOf] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._closing = threading.Event()
        self._teller = threading.Thread(target=self._tell, name="dnnserve-counts", daemon=True)
        self._teller.start()

    def record_calls(self, model: ModelKey | None, method: str, status: str, taken_ns: Sequence[int]) -> None:
        """Count calls."""
        for each in taken_ns:
            self._ended.put(messages.CallEnded(model, method, status, each))

    def record_refusal(self, model: ModelKey, error: Exception, total_ns: int) -> None:
        """Count a request that failed before it was submitted."""
        with contextlib.suppress(OSError):
            self._link.send(messages.Refusal(model, type(error).__name__, str(error), total_ns))

    def snapshot(self, model: ModelKey) -> ModelSnapshot:
        """The counters of one model now.

        Raises:
            UnavailableError: the other process does not answer.
        """
        with self._asking:
            try:
                self._link.send(messages.Snapshot(model))
                while (answer := self._snapshots.get(timeout=_PATIENCE_S)).model != model:
                    pass  # the answer to a question that was given up
            except (OSError, queue.Empty):
                raise UnavailableError("the counters are in another process, which does not answer; retry") from None
            return answer.counters

    def deliver(self, snapshot: messages.SnapshotOf) -> None:
        """Hand over the answer to `snapshot`."""
        self._snapshots.put(snapshot)

    def close(self) -> None:
        """Tell what has not been told yet."""
        self._closing.set()
        self._teller.join()

    def _tell(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(_TOLD_EVERY_S)
            while calls := self._some():
                with contextlib.suppress(OSError):
                    self._link.send(messages.CallsEnded(calls))

    def _some(self) -> Sequence[messages.CallEnded]:
        calls: list[messages.CallEnded] = []
        with contextlib.suppress(queue.Empty):
            while len(calls) < _MOST_TOGETHER:
                calls.append(self._ended.get_nowait())
        return calls


class RemoteRepository:
    """The repository, which is another process's. Thread-safe: operations of `_waiting` are atomic.

    Args:
        link: To the other process.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tickets = itertools.count(1)
        self._waiting: dict[int, Callable[[Told], None]] = {}

    def ask(self, question: Question, answer: Callable[[Told], None]) -> None:
        """Have a question answered.

        Raises:
            UnavailableError: the other process has ended.
        """
        ticket = next(self._tickets)
        self._waiting[ticket] = answer
        try:
            self._link.send(messages.Asked(ticket, question))
        except OSError:
            del self._waiting[ticket]
            raise UnavailableError("the server's process has ended; retry, or ask another replica") from None

    def deliver(self, told: messages.Told) -> None:
        """Hand over an answer."""
        self._waiting.pop(told.ticket)(told.answer)
