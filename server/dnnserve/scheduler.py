"""The mechanism around the batchers: a lock, two conditions and a clock; every decision is `batcher.py`'s.

Front ends submit and cancel, runner threads take and complete, one thread of our own answers requests that expire while all
devices are busy. Every request that was submitted gets exactly one completion. Completions are recorded (statistics, metrics)
before they are delivered, so whoever has an answer also finds it counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dnnserve.batcher import Batcher, Entry, Limits
from dnnserve.envelope import Answer, Completion, CompletionSink, InferenceRequest, ModelKey
from dnnserve.errors import RequestError, UnavailableError
from dnnserve.refusals import cancelled_error, expired_error, rejection_error

__all__ = ["Batch", "Recorder", "Scheduler"]

_LONGEST_WAIT_S = 3600.0

Recorder = Callable[[Sequence[Completion]], None]
"""Called with every completion, before it is delivered, outside any lock of the scheduler; must not raise."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of one model that run together. Immutable."""

    model: ModelKey
    requests: tuple[InferenceRequest, ...]
    taken_ns: int

    @property
    def rows(self) -> int:
        """Rows of all its requests."""
        return sum(len(request.rows) for request in self.requests)


class Scheduler:
    """Queues of all loaded models, shared by all devices. Thread-safe.

    `_lock` guards `_batchers`, `_order`, `_pending`, `_put_back`, `_devices`, `_no_device_reason`, `_stopped` and
    `_sweeper_wakes_ns`; `_work` and `_timer` are conditions on it. Sinks and recorders are called without it.

    Args:
        clock: Monotonic nanoseconds; the one that requests' times come from.
        recorders: Called in this order with every completion.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, recorders: Iterable[Recorder] = ()) -> None:
        self._clock = clock
        self._recorders = tuple(recorders)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # runners: something may be taken
        self._timer = threading.Condition(self._lock)  # the sweeper: an earlier deadline came in
        self._batchers: dict[ModelKey, Batcher] = {}
        self._order: list[ModelKey] = []  # round-robin: the model served last stands last
        self._pending: dict[int, InferenceRequest] = {}  # submitted and not yet completed: queued or running
        self._put_back: set[int] = set()  # tickets of `_pending` that have had their second chance
        self._devices: set[str] = set()
        self._no_device_reason = "no device has started"
        self._stopped = False
        self._sweeper_wakes_ns: int | None = None
        self._sweeper = threading.Thread(target=self._sweep, name="dnnserve-expiry", daemon=True)

    def start(self) -> None:
        """Begin to answer requests that expire while all devices are busy."""
        self._sweeper.start()

    def add_model(self, model: ModelKey, limits: Limits, batch_cost_ns: Callable[[int], int] | None = None) -> None:
        """Open a queue for a model that every device has loaded."""
        with self._lock:
            if model in self._batchers:
                raise ValueError(f"model {model} has a queue already")
            self._batchers[model] = Batcher(limits, batch_cost_ns)
            self._order.append(model)

    def add_device(self, device: str) -> None:
        """Count one more runner that takes batches."""
        with self._lock:
            self._devices.add(device)

    def lose_device(self, device: str, reason: str) -> None:
        """Count a runner out; when it was the last, nothing can be answered any more and everything queued is told so."""
        with self._lock:
            self._devices.discard(device)
            if self._devices:
                return
            self._no_device_reason = f"no healthy device is left; {device}: {reason}"
            completions = self._abandon()
        self._deliver(completions)

    @property
    def healthy_devices(self) -> frozenset[str]:
        """Devices whose runners take batches."""
        with self._lock:
            return frozenset(self._devices)

    @property
    def in_flight(self) -> int:
        """Requests that were submitted and have no completion yet."""
        with self._lock:
            return len(self._pending)

    def queue_depths(self) -> Mapping[ModelKey, int]:
        """Requests that wait, by model."""
        with self._lock:
            return {model: len(batcher) for model, batcher in self._batchers.items()}

    def submit(self, request: InferenceRequest) -> None:
        """Queue a request, or complete it at once with the reason why not."""
        error: RequestError | None = None
        with self._lock:
            now_ns = self._clock()
            if self._stopped or not self._devices:
                error = self._unavailable()
            else:
                batcher = self._batchers[request.model]
                entry = Entry(request.ticket, len(request.rows), now_ns, request.deadline_ns)
                rejection = batcher.submit(entry, now_ns)
                if rejection is None:
                    self._pending[request.ticket] = request
                    self._work.notify()
                    expiry_ns = batcher.next_expiry_ns()
                    if expiry_ns is not None and (self._sweeper_wakes_ns is None or expiry_ns < self._sweeper_wakes_ns):
                        self._timer.notify()
                else:
                    error = rejection_error(rejection, request, batcher.limits, now_ns)
        if error is not None:
            self._deliver([Completion(request, error, now_ns)])

    def cancel(self, ticket: int) -> None:
        """Answer a request as cancelled, wherever it is; unknown and answered tickets are none of our business any more.

        A queued one leaves its queue. A running one stays in its batch, whose other requests do not notice.
        """
        with self._lock:
            request = self._forget(ticket)
            if request is None:
                return
            self._batchers[request.model].cancel(ticket)
            now_ns = self._clock()
        self._deliver([Completion(request, cancelled_error(request, now_ns), now_ns)])

    def take(self) -> Batch | None:
        """Wait for a batch to run; None: the scheduler has stopped. For runner threads."""
        while True:
            with self._lock:
                if self._stopped:
                    return None
                batch, expired = self._take()
                if batch is None and not expired:
                    wakes_ns = self._next_take_ns()
                    # A batcher that has something to give later says when; else only an event can change anything.
                    self._work.wait(self._seconds_until(wakes_ns))
                    continue
            self._deliver(expired)
            if batch is not None:
                return batch

    def take_ahead(self) -> Batch | None:
        """A batch for a device that is still busy: one that is full already, None while there is none."""
        with self._lock:
            full = any(batcher.rows >= batcher.limits.max_batch_rows for batcher in self._batchers.values())
            batch, expired = self._take() if full and not self._stopped else (None, [])
        self._deliver(expired)
        return batch

    def try_take(self) -> Batch | None:
        """As `take`, but None at once when there is nothing to run."""
        with self._lock:
            batch, expired = (None, []) if self._stopped else self._take()
        self._deliver(expired)
        return batch

    def complete(self, batch: Batch, outcomes: Sequence[Answer | RequestError]) -> None:
        """Deliver a batch's outcomes, one a request; those that were answered meanwhile (cancelled) keep that answer."""
        with self._lock:
            now_ns = self._clock()
            completions = [
                Completion(request, outcome, now_ns)
                for request, outcome in zip(batch.requests, outcomes, strict=True)
                if self._forget(request.ticket) is not None
            ]
        self._deliver(completions)

    def put_back(self, batch: Batch, error: RequestError) -> int:
        """Queue a batch again whose device was lost while it ran; inference changes nothing, so another device may repeat it.

        Once a request: whatever loses a second device is answered with the error, so that a request which breaks devices cannot
        take all of them. So is everything when no device is left.

        Returns:
            Requests that were queued again.
        """
        with self._lock:
            now_ns = self._clock()
            waiting = [request for request in batch.requests if request.ticket in self._pending]
            served = bool(self._devices) and not self._stopped
            again = [request for request in waiting if served and request.ticket not in self._put_back]
            failed = [request for request in waiting if not served or request.ticket in self._put_back]
            self._batchers[batch.model].put_back(
                [Entry(r.ticket, len(r.rows), r.arrival_ns, r.deadline_ns) for r in again]
            )
            self._put_back.update(request.ticket for request in again)
            for request in failed:
                self._forget(request.ticket)
            completions = [Completion(request, error, now_ns) for request in failed]
            self._work.notify_all()
            self._timer.notify()
        self._deliver(completions)
        return len(again)

    def expire(self) -> int | None:
        """Answer every queued request that can no longer be started in time.

        Returns:
            The moment at which the next one expires, None while none has a deadline.
        """
        with self._lock:
            expired = self._expire()
            expiry_ns = self._next_expiry_ns()
        self._deliver(expired)
        return expiry_ns

    def drain(self) -> None:
        """Let queued requests go without waiting for company: no more are coming."""
        with self._lock:
            for batcher in self._batchers.values():
                batcher.drain()
            self._work.notify_all()

    def stop(self) -> None:
        """Answer what has no completion yet with UnavailableError, and let runners and our own thread end.

        Batches that run are not waited for; their outcomes come too late to count.
        """
        with self._lock:
            self._stopped = True
            completions = self._abandon()
            running, self._pending = tuple(self._pending.values()), {}
            self._put_back.clear()
            now_ns = self._clock()
            completions += [Completion(request, self._unavailable(), now_ns) for request in running]
            self._work.notify_all()
            self._timer.notify_all()
        self._deliver(completions)
        if self._sweeper.is_alive():
            self._sweeper.join()

    # What follows is called with the lock held, except _sweep and _deliver.

    def _take(self) -> tuple[Batch | None, list[Completion]]:
        now_ns = self._clock()
        expired: list[Completion] = []
        for position, model in enumerate(self._order):
            decision = self._batchers[model].take(now_ns)
            expired += self._completions(decision.expired, lambda request: expired_error(request, now_ns), now_ns)
            if decision.batch:
                self._order.append(self._order.pop(position))
                if any(map(len, self._batchers.values())):
                    self._work.notify()  # one notification may have stood for more than this batch
                return Batch(model, tuple(self._pending[entry.ticket] for entry in decision.batch), now_ns), expired
        return None, expired

    def _expire(self) -> list[Completion]:
        now_ns = self._clock()
        late = [entry for batcher in self._batchers.values() for entry in batcher.expire(now_ns)]
        return self._completions(late, lambda request: expired_error(request, now_ns), now_ns)

    def _abandon(self) -> list[Completion]:
        entries = [entry for batcher in self._batchers.values() for entry in batcher.abandon()]
        return self._completions(entries, lambda _: self._unavailable(), self._clock())

    def _completions(
        self, entries: Iterable[Entry], error: Callable[[InferenceRequest], RequestError], now_ns: int
    ) -> list[Completion]:
        requests = [self._pending[entry.ticket] for entry in entries]
        for request in requests:
            self._forget(request.ticket)
        return [Completion(request, error(request), now_ns) for request in requests]

    def _forget(self, ticket: int) -> InferenceRequest | None:
        """Take a request off the books; None: it has been answered already."""
        self._put_back.discard(ticket)
        return self._pending.pop(ticket, None)

    def _unavailable(self) -> UnavailableError:
        reason = "the server is stopping" if self._stopped else self._no_device_reason
        return UnavailableError(f"{reason}; retry, or ask another replica")

    def _next_take_ns(self) -> int | None:
        now_ns = self._clock()
        return min((t for b in self._batchers.values() if (t := b.next_take_ns(now_ns)) is not None), default=None)

    def _next_expiry_ns(self) -> int | None:
        return min((t for b in self._batchers.values() if (t := b.next_expiry_ns()) is not None), default=None)

    def _seconds_until(self, moment_ns: int | None) -> float | None:
        if moment_ns is None:
            return None
        # A client may set any deadline, and waiting for longer than an hour at a time helps nobody: an interval that the platform
        # cannot hold would end the thread that waits.
        return min(max(0.0, (moment_ns - self._clock()) / 1e9), _LONGEST_WAIT_S)

    def _sweep(self) -> None:
        while True:
            with self._lock:
                if self._stopped:
                    return
                expired = self._expire()
                if not expired:
                    self._sweeper_wakes_ns = self._next_expiry_ns()
                    self._timer.wait(self._seconds_until(self._sweeper_wakes_ns))
                    continue
            self._deliver(expired)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        if not completions:
            return
        for record in self._recorders:
            record(completions)
        by_sink: dict[CompletionSink, list[Completion]] = {}
        for completion in completions:
            by_sink.setdefault(completion.request.sink, []).append(completion)
        for sink, mine in by_sink.items():
            sink(mine)
