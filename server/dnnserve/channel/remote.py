"""The front end's end of the channel: it stands where the scheduler would, and where its statistics would."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np

from dnnserve.catalog import ModelSpec
from dnnserve.channel import messages
from dnnserve.channel.blocks import Blocks
from dnnserve.envelope import Answer, Completion, CompletionSink, InferenceRequest, ModelKey
from dnnserve.errors import QueueFullError, UnavailableError
from dnnserve.processes.link import Link
from dnnserve.processes.shared_buffer import SharedBuffer
from dnnserve.statistics import ModelSnapshot

__all__ = ["RemoteScheduler", "RemoteStatistics"]

_RETRY_MS = 20
_PATIENCE_S = 2.0
_MOST_TOGETHER = 256


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
        self._output_bytes: dict[ModelKey, int] = {}

    def serve(self, specs: Sequence[ModelSpec]) -> None:
        """Take requests for these models."""
        self._output_bytes = {spec.key: 4 * spec.num_classes for spec in specs}

    def submit(self, request: InferenceRequest) -> None:
        """Queue a request, whose completion goes to its sink; a full arena refuses it at once."""
        rows = request.rows
        room = max(rows.nbytes, len(rows) * self._output_bytes[request.model])
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
        message = messages.Submit(
            *(request.ticket, request.model, rows.shape, rows.dtype == np.uint8, offset),
            *(request.arrival_ns, request.deadline_ns, request.id),
        )
        try:
            self._link.send(message)
        except OSError:
            self.lose("the scheduler's process has ended")

    def cancel(self, ticket: int) -> None:
        """Complete a request as cancelled, if it has not been completed."""
        if ticket in self._waiting:
            with contextlib.suppress(OSError):  # then everything is lost anyway
                self._link.send(messages.Cancel(ticket))

    def complete(self, outcomes: Sequence[messages.Answered | messages.Refused]) -> None:
        """Deliver what the scheduler has completed."""
        by_sink: dict[CompletionSink, list[Completion]] = {}
        for outcome in outcomes:
            request, offset = self._waiting[outcome.ticket]
            if isinstance(outcome, messages.Answered):
                place = self._bytes[offset : offset + 4 * math.prod(outcome.shape)]
                outputs = place.view(np.float32).reshape(outcome.shape).copy()
                answer = Answer(outputs, outcome.device, outcome.batch_rows, outcome.batch_times)
                completion = Completion(request, answer, outcome.finished_ns)
            else:
                completion = Completion(request, outcome.error, outcome.finished_ns)
            by_sink.setdefault(request.sink, []).append(completion)
        with self._lock:
            for outcome in outcomes:
                self._blocks.give_back(self._waiting.pop(outcome.ticket)[1])
        for sink, completions in by_sink.items():
            sink(completions)

    def lose(self, reason: str) -> None:
        """Answer everything that waits as unavailable: nobody else will."""
        with self._lock:
            lost, self._waiting = list(self._waiting.values()), {}
        now_ns = self._clock()
        for request, _ in lost:
            request.sink([Completion(request, UnavailableError(f"{reason}; retry"), now_ns)])


class RemoteStatistics:
    """Counters that are kept in another process. Thread-safe.

    Calls that end are told in bundles, by a thread of its own, so that an answer waits for no message about it.

    Args:
        link: To the other process.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ended: queue.SimpleQueue[messages.CallEnded | None] = queue.SimpleQueue()
        self._snapshots: queue.SimpleQueue[messages.SnapshotOf] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._teller = threading.Thread(target=self._tell, name="dnnserve-counts", daemon=True)
        self._teller.start()

    def record_call(self, model: ModelKey | None, method: str, status: str, taken_ns: int) -> None:
        """Count a call."""
        self._ended.put(messages.CallEnded(model, method, status, taken_ns))

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
        self._ended.put(None)
        self._teller.join()

    def _tell(self) -> None:
        open_ = True
        while open_:
            calls = [self._ended.get()]
            with contextlib.suppress(queue.Empty):
                while len(calls) < _MOST_TOGETHER:
                    calls.append(self._ended.get_nowait())
            open_ = None not in calls
            with contextlib.suppress(OSError):
                self._link.send(messages.CallsEnded([call for call in calls if call is not None]))
