"""The mechanism around the policy: a lock, a condition for each device, a clock; every decision is made in `dnnserve.scheduling`.

Front ends submit and cancel, runner threads take and complete, a sweeper answers requests that expire while all devices are busy.
Every request that was submitted is in the ledger until it gets its one completion.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from dnnserve.batch import Batch, BatchObserver
from dnnserve.delivery import Delivery, Recorder
from dnnserve.envelope import Answer, Completion, InferenceRequest, ModelKey
from dnnserve.errors import RequestError, UnavailableError
from dnnserve.ledger import Ledger
from dnnserve.refusals import cancelled_error, expired_error, refusal_error, restarting_error
from dnnserve.scheduling.costs import Curve, Recall
from dnnserve.scheduling.dispatcher import Dispatcher
from dnnserve.scheduling.entry import Entry, Limits
from dnnserve.sweeper import Sweeper, seconds_until

__all__ = ["Scheduler"]


class Scheduler:
    """Queues of all loaded models, shared by all devices. Thread-safe.

    `_lock` guards `_dispatcher`, `_ledger`, `_no_device_reason`, `_stopped`, `_idle`, `_busy` and `_sweeper`. Sinks, recorders and
    observers are called without it.

    A device holds the blocks of a batch from the moment at which it is taken to `complete` or `put_back`, whatever becomes of its
    requests meanwhile.

    Args:
        clock: Monotonic nanoseconds; the one that requests' times come from.
        recorders: Called in this order with every completion.
        observers: Called in this order with every batch that was answered.
        margin_ns: Answers are due so long before the deadlines of their requests: the way back to the client takes time too.
        recall: What was learned earlier of batches; called with the lock held. None: nothing was.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.monotonic_ns,
        recorders: Iterable[Recorder] = (),
        observers: Iterable[BatchObserver] = (),
        margin_ns: int = 0,
        recall: Recall | None = None,
    ) -> None:
        self._clock = clock
        self._deliver = Delivery(recorders)
        self._observers = tuple(observers)
        self._margin_ns = margin_ns
        self._lock = threading.Lock()
        self._dispatcher = Dispatcher(recall)
        self._ledger = Ledger()
        self._no_device_reason = "no device has started"
        self._stopped = False
        self._idle = _Waiting(self._lock)  # for work
        self._busy = _Waiting(self._lock)  # for a full batch, while their devices run another
        self._sweeper = Sweeper(self._lock, clock, self._expire, self._dispatcher.next_expiry_ns, self._deliver)

    def start(self) -> None:
        """Begin to answer requests that expire while all devices are busy."""
        self._sweeper.start()

    def add_model(self, model: ModelKey, limits: Limits) -> None:
        """Open a queue for a model, which the devices run that have it."""
        with self._lock:
            self._dispatcher.add_model(model, limits, self._clock())
            self._ledger.add_model(model)

    def remove_model(self, model: ModelKey) -> None:
        """Close a model's queue; what is in it still is answered as unavailable."""
        with self._lock:
            now_ns = self._clock()
            entries = self._dispatcher.remove_model(model)
            completions = self._ledger.fail(entries, lambda _: _gone_error(model), now_ns)
            self._ledger.remove_model(model)
        self._deliver(completions)

    def drain_model(self, model: ModelKey) -> None:
        """Let what waits for a model go without waiting for company: no more is coming."""
        with self._lock:
            self._dispatcher.drain(model)
            self._idle.wake()

    def in_flight_of(self, model: ModelKey) -> int:
        """Requests for a model that were submitted and have no completion yet; takes a look at all there are."""
        with self._lock:
            return sum(request.model == model for request in self._ledger.requests)

    def set_limits(self, model: ModelKey, limits: Limits) -> None:
        """Bounds of a model's queue from now on; those of its batches stay."""
        with self._lock:
            self._dispatcher.set_limits(model, limits)
            self._idle.wake()

    def set_margin(self, margin_ns: int) -> None:
        """How long before their deadlines answers of requests are due that come from now on."""
        self._margin_ns = margin_ns

    def place(self, device: str, model: ModelKey, timings_ns: Mapping[int, int]) -> None:
        """A runner takes batches of a model from now on, with what they took when it warmed up: by rows."""
        with self._lock:
            self._dispatcher.place(device, model, timings_ns, self._clock())

    def displace(self, device: str, model: ModelKey) -> None:
        """A runner takes no batches of a model any more."""
        with self._lock:
            self._dispatcher.displace(device, model)

    def add_device(self, device: str, timings_ns: Mapping[ModelKey, Mapping[int, int]] | None = None) -> None:
        """Count one more runner that takes batches.

        Args:
            device: Its label.
            timings_ns: Of the models that it has, what batches took when it warmed up, by rows; None: it has all, also those to
                come, and nothing is known.
        """
        with self._lock:
            self._dispatcher.add_device(device, timings_ns, self._clock())
            completions = self._abandon(stranded=True)  # what waited for a model with which it has not come back
        self._deliver(completions)

    def lose_device(self, device: str, reason: str, back_ns: int | None = None) -> None:
        """Count a runner out. What waits for a model that no other has waits for its return, and is told so if that will be too
        late, or is not expected.

        Args:
            device: Its label; it may have been counted out before, and be expected at another moment, or no more.
            reason: Why.
            back_ns: When it is expected to be added again; None: never.
        """
        with self._lock:
            self._dispatcher.lose_device(device, self._clock(), back_ns)
            self._no_device_reason = f"no healthy device is left; {device}: {reason}"
            completions = self._abandon(stranded=True) + self._expire()
            self._sweeper.wake()
        self._deliver(completions)

    @property
    def healthy_devices(self) -> frozenset[str]:
        """Devices whose runners take batches."""
        with self._lock:
            return self._dispatcher.devices

    @property
    def stopped(self) -> bool:
        """Whether no more batches are given out."""
        return self._stopped

    @property
    def in_flight(self) -> int:
        """Requests that were submitted and have no completion yet."""
        with self._lock:
            return len(self._ledger)

    def queue_depths(self) -> Mapping[ModelKey, int]:
        """Requests that wait, by model."""
        with self._lock:
            return self._dispatcher.depths

    def queue_bounds(self) -> Mapping[ModelKey, int]:
        """Requests that may wait, by model."""
        with self._lock:
            return self._dispatcher.bounds

    def costs(self) -> Mapping[ModelKey, Mapping[str, Curve]]:
        """What batches are expected to take, by model and device."""
        with self._lock:
            return self._dispatcher.costs.curves()

    def repeats(self) -> Mapping[ModelKey, int]:
        """Requests that were queued again since the start because a device was lost under them or had no memory, by model."""
        with self._lock:
            return self._ledger.repeats

    def submit(self, *requests: InferenceRequest) -> None:
        """Queue requests, or complete them at once with the reason why not."""
        refused: list[Completion] = []
        earliest_ns: int | None = None
        with self._lock:
            now_ns = self._clock()
            for request in requests:
                due_ns = None if request.deadline_ns is None else request.deadline_ns - self._margin_ns
                error = self._queue(request, due_ns, now_ns)
                if error is not None:
                    refused.append(Completion(request, error, now_ns))
                elif due_ns is not None and (earliest_ns is None or due_ns < earliest_ns):
                    earliest_ns = due_ns
            if self._idle and len(refused) < len(requests):
                self._notify(len(requests) - len(refused))
            if earliest_ns is not None:
                self._sweeper.hear_of(earliest_ns)
        self._deliver(refused)

    def cancel(self, ticket: int) -> None:
        """Answer a request as cancelled, wherever it is; unknown and answered tickets are none of our business any more.

        A queued one leaves its queue. A running one stays in its batch, whose other requests do not notice.
        """
        with self._lock:
            request = self._ledger.strike(ticket)
            if request is None:
                return
            self._dispatcher.cancel(request.model, ticket)
            now_ns = self._clock()
        self._deliver([Completion(request, cancelled_error(request, now_ns), now_ns)])

    def take(self, device: str, interrupted: Callable[[], bool] = lambda: False) -> Batch | None:
        """Wait for a batch to run on a device, which is idle; for runner threads.

        Returns:
            The batch; None: the scheduler has stopped, or the runner is interrupted, of which somebody must tell by `wake`.
        """
        while True:
            with self._lock:
                if self._stopped or interrupted():
                    if len(self._dispatcher):
                        self._notify()  # this one may have been woken for that
                    return None
                batch, dropped, look_again_ns = self._take(device)
                if batch is None and not dropped:
                    # A queue that has something to give later says when; else only an event can change anything.
                    self._idle.wait(device, seconds_until(look_again_ns, self._clock))
                    continue
            self._deliver(dropped)
            if batch is not None:
                return batch

    def wake(self, device: str) -> None:
        """Let a device's runner, should it wait, find out what has changed."""
        with self._lock:
            self._idle.wake_one(device)
            self._busy.wake_one(device)

    def take_ahead(
        self, device: str, ended: Callable[[], bool], interrupted: Callable[[], bool] = lambda: False
    ) -> Batch | None:
        """Wait for a full batch for a device that is still busy; for its runner's thread.

        Returns:
            The batch; None: what runs there has ended before there was one, the runner is interrupted, of either of which somebody
            must tell by `wake`, or the scheduler has stopped.
        """
        with self._lock:
            while not (self._stopped or interrupted()):
                batch, _, _ = self._take(device, ahead=True)
                if batch is not None:
                    return batch
                if ended():
                    break
                self._busy.wait(device)
            self._offer_ahead()  # this one may have been woken for a batch
        return None

    def complete(self, batch: Batch, outcomes: Sequence[Answer | RequestError]) -> None:
        """Deliver a batch's outcomes, one per request; those that were answered meanwhile (cancelled) keep that answer.

        The device has done with the batch, and neither reads nor writes its blocks.
        """
        for request in batch.requests:
            request.block.release()
        with self._lock:
            completions = self._ledger.settle(batch.requests, outcomes, self._clock())
        self._deliver(completions)
        failed = isinstance(outcomes[0], RequestError)  # a batch runs or fails as a whole
        with self._lock:
            # Delivering is part of what a batch costs: the device's thread does it, and clients wait for it.
            took_ns = self._dispatcher.complete(batch.device, batch.decision, self._clock(), failed=failed)
        if not failed:
            for observe in self._observers:
                observe(batch, took_ns)

    def put_back(self, batch: Batch, error: RequestError) -> int:
        """Queue a batch again whose device was lost while it ran, or had no memory for it; inference changes nothing, so that it
        may be repeated.

        Once a request: what fails so a second time is answered with the error, so that a request which breaks devices cannot
        take all of them. So is everything when no device is left, nor expected. The device does nothing with the blocks any more.

        Returns:
            Requests that were queued again.
        """
        for request in batch.requests:
            request.block.release()
        with self._lock:
            now_ns = self._clock()
            self._dispatcher.complete(batch.device, batch.decision, now_ns, failed=True)  # where it is not lost
            there = self._dispatcher.has(batch.model)  # not where all its requests were cancelled and it was removed
            served = there and self._dispatcher.takes(batch.model) and not self._stopped
            again = self._ledger.repeat(batch.requests) if served else set()
            if again:
                self._dispatcher.put_back(batch.model, [e for e in batch.decision.batch if e.ticket in again])
            rest = [request for request in batch.requests if request.ticket not in again]
            completions = self._ledger.settle(rest, [error] * len(rest), now_ns) + self._expire()
            self._wake_all()
            self._sweeper.wake()
        self._deliver(completions)
        return len(again)

    def expire(self) -> int | None:
        """Answer every queued request that no device could answer in time any more.

        Returns:
            The moment at which the next one expires, None while none has a deadline.
        """
        with self._lock:
            expired = self._expire()
            expiry_ns = self._dispatcher.next_expiry_ns()
        self._deliver(expired)
        return expiry_ns

    def drain(self) -> None:
        """Let queued requests go without waiting for company: no more are coming."""
        with self._lock:
            self._dispatcher.drain()
            self._idle.wake()

    def stop(self) -> None:
        """Answer what has no completion yet with UnavailableError, and let runners and our own thread end.

        Batches that run are not waited for; their outcomes come too late to count.
        """
        with self._lock:
            self._stopped = True
            completions = self._abandon()
            completions += self._ledger.fail_all(self._unavailable, self._clock())  # what runs
            self._wake_all()
            self._sweeper.stop()
        self._deliver(completions)
        self._sweeper.join()

    # What follows is called with the lock held.

    def _queue(self, request: InferenceRequest, due_ns: int | None, now_ns: int) -> RequestError | None:
        """Queue a request whose answer is due at a moment, or say why not."""
        model = request.model
        if not self._dispatcher.has(model):
            return _gone_error(model)
        if self._stopped or not self._dispatcher.takes(model):
            return self._unavailable()
        entry = Entry.of(request.ticket, len(request.block), now_ns, due_ns, request.priority)
        refusal = self._dispatcher.submit(model, entry, now_ns)
        if refusal is not None:
            return refusal_error(refusal, request, self._dispatcher.limits(model), now_ns)
        self._ledger.enter(request)
        if self._busy and self._dispatcher.has_full_batch(model):
            self._offer_ahead()
        return None

    def _take(self, device: str, *, ahead: bool = False) -> tuple[Batch | None, list[Completion], int | None]:
        now_ns = self._clock()
        decision = self._dispatcher.take(device, now_ns, ahead=ahead)
        late = [entry for dropped in decision.dropped for entry in dropped.entries]
        completions = self._ledger.fail(late, lambda request: expired_error(request, now_ns), now_ns)
        if decision.others_should_look:
            self._idle.wake()
        if decision.model is None:
            return None, completions, decision.look_again_ns
        if len(self._dispatcher):
            self._notify()  # one notification may have stood for more than this batch
        requests = self._ledger.of(decision.batch)
        for request in requests:
            request.block.hold()
        return Batch(device, decision.model, requests, decision), completions, None

    def _expire(self) -> list[Completion]:
        now_ns = self._clock()
        late = self._dispatcher.expire(now_ns)
        return self._ledger.fail(late, lambda request: self._late_error(request, now_ns), now_ns)

    def _late_error(self, request: InferenceRequest, now_ns: int) -> RequestError:
        back_ns = self._dispatcher.back_ns(request.model)
        if back_ns is None or back_ns <= now_ns or (request.deadline_ns is not None and request.deadline_ns <= now_ns):
            return expired_error(request, now_ns)
        return restarting_error(request, back_ns, now_ns)

    def _notify(self, count: int = 1) -> None:
        """Wake so many runners that wait, whichever they are: all of them, where they do not all have the same models."""
        self._idle.wake(count if self._dispatcher.uniform else None)

    def _offer_ahead(self) -> None:
        """Wake the runner that waits for a full batch and is free first: all of them, where their devices have different models."""
        if not self._dispatcher.uniform:
            self._busy.wake()
        elif self._busy:
            self._busy.wake_one(self._dispatcher.first_free(self._busy))

    def _wake_all(self) -> None:
        self._idle.wake()
        self._busy.wake()

    def _abandon(self, *, stranded: bool = False) -> list[Completion]:
        entries = self._dispatcher.abandon(stranded=stranded)
        return self._ledger.fail(entries, lambda _: self._unavailable(), self._clock())

    def _unavailable(self) -> UnavailableError:
        reason = "the server is stopping" if self._stopped else self._no_device_reason
        return UnavailableError(f"{reason}; retry, or ask another replica")


class _Waiting:
    """Runners that wait for one kind of event, each to be woken alone. Its methods are called with the scheduler's lock.

    Args:
        lock: The scheduler's.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._conditions: dict[str, threading.Condition] = {}
        self._waiting: dict[
            str, threading.Condition
        ] = {}  # those of runners that wait and were not woken, longest first

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[str]:
        """Their devices."""
        return iter(self._waiting)

    def wait(self, device: str, timeout_s: float | None = None) -> None:
        """Wait as a device's runner."""
        condition = self._conditions.get(device)
        if condition is None:
            condition = self._conditions[device] = threading.Condition(self._lock)
        self._waiting[device] = condition
        condition.wait(timeout_s)
        self._waiting.pop(device, None)

    def wake(self, most: int | None = None) -> None:
        """Wake so many, or all."""
        for device in [*islice(self._waiting, most)]:
            self.wake_one(device)

    def wake_one(self, device: str) -> None:
        """Wake a device's runner, should it wait."""
        condition = self._waiting.pop(device, None)
        if condition is not None:
            condition.notify()


def _gone_error(model: ModelKey) -> RequestError:
    return UnavailableError(f"model {model} has been unloaded; ask for another version, or another replica")
