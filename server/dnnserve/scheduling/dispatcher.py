"""The state that decisions are made in: queues, costs, and what the devices are doing.

Time and events come in, decisions go out and are carried out on the state. The mechanism around it (`dnnserve.scheduler`) and the
simulator of the tests drive the same class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dnnserve.envelope import ModelKey
from dnnserve.scheduling.admission import Refusal, Rejection, admit
from dnnserve.scheduling.costs import Costs, Recall
from dnnserve.scheduling.entry import Entry, Limits
from dnnserve.scheduling.policy import Decision, choose
from dnnserve.scheduling.queue import ModelQueue

__all__ = ["Dispatcher"]


_LEAST_LATE = 4
"""A device that is overdue takes this part of what it was expected to take in any case: starts scatter by as much."""


class _Return(NamedTuple):
    """When a lost device is expected back. Immutable.

    Args:
        expected_ns: The moment.
        told_ns: When that was said.
    """

    expected_ns: int
    told_ns: int

    def after(self, now_ns: int) -> int:
        """When it is expected by what is known now: one that is overdue will take as long again as it is late, and not less than a
        part of the whole."""
        if now_ns < self.expected_ns:
            return self.expected_ns
        late_ns = now_ns - self.expected_ns
        return now_ns + max(late_ns, (self.expected_ns - self.told_ns) // _LEAST_LATE)


class Dispatcher:
    """Requests of all models and the devices that run them. Owned by one thread; not checked: the scheduler's lock sees to it.

    A device that is lost may be expected back. Where no other has a model, requests for it wait for that device, if they can be
    answered in time behind its return; where another has it, nobody counts on the one that is away.

    Args:
        recall: What was learned earlier of batches; None: nothing was.
    """

    def __init__(self, recall: Recall | None = None) -> None:
        self._recall = recall
        self._queues: dict[ModelKey, ModelQueue] = {}
        self._costs = Costs()
        self._free_ns: dict[str, int] = {}  # healthy devices, with the expected end of what they run
        self._returns: dict[str, _Return] = {}  # of those that are away
        self._away = Costs()  # what batches took on them
        self._running: dict[str, list[Decision]] = {}
        self._ended_ns: dict[str, int] = {}  # when each device ended its last batch
        # Of the models that a device has; None: it has all there are and will be.
        self._timings_ns: dict[str, dict[ModelKey, Mapping[int, int]] | None] = {}
        self._served_ns = 0.0  # what the model that was chosen last had been given before

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def devices(self) -> frozenset[str]:
        """Those that take batches."""
        return frozenset(self._free_ns)

    @property
    def num_devices(self) -> int:
        """How many take batches."""
        return len(self._free_ns)

    @property
    def costs(self) -> Costs:
        """Of all models on all devices that have taken batches."""
        return self._costs

    @property
    def depths(self) -> dict[ModelKey, int]:
        """Requests that wait, by model."""
        return {model: len(queue) for model, queue in self._queues.items()}

    @property
    def bounds(self) -> dict[ModelKey, int]:
        """Requests that may wait, by model."""
        return {model: queue.limits.max_queue_requests for model, queue in self._queues.items()}

    def add_model(self, model: ModelKey, limits: Limits, now_ns: int) -> None:
        """Open a queue for a model, which the devices run that have it."""
        if model in self._queues:
            raise ValueError(f"model {model} has a queue already")
        self._queues[model] = ModelQueue(limits)
        self._costs.add(model)
        self._away.add(model)
        for device in self._free_ns:
            self._seed(device, model, now_ns)

    def remove_model(self, model: ModelKey) -> list[Entry]:
        """Close a model's queue; what was in it."""
        self._costs.remove(model)
        self._away.remove(model)
        return list(self._queues.pop(model).clear())

    def place(self, device: str, model: ModelKey, timings_ns: Mapping[int, int], now_ns: int) -> None:
        """A device has a model from now on, with what its batches took when it warmed up: by rows."""
        had = self._timings_ns.get(device)
        if had is None:
            return  # it is lost, or has all
        had[model] = timings_ns
        if model in self._queues:
            self._seed(device, model, now_ns)

    def displace(self, device: str, model: ModelKey) -> None:
        """A device has a model no more."""
        had = self._timings_ns.get(device)
        if had is not None:
            had.pop(model, None)
            if model in self._queues:
                self._costs.forget(device, [model])

    def set_limits(self, model: ModelKey, limits: Limits) -> None:
        """Bounds of a model's queue from now on; those of its batches stay."""
        self._queues[model].limits = replace(limits, max_batch_rows=self._queues[model].limits.max_batch_rows)

    def add_device(self, device: str, timings_ns: Mapping[ModelKey, Mapping[int, int]] | None, now_ns: int) -> None:
        """Count one more device that takes batches, idle now.

        Args:
            device: Which.
            timings_ns: Of the models that it has, what batches took when it warmed up, by rows; None: it has all, also those to
                come, and nothing is known.
            now_ns: The moment.
        """
        self._returns.pop(device, None)
        self._away.forget(device)
        self._free_ns[device] = self._ended_ns[device] = now_ns
        self._running[device] = []
        self._timings_ns[device] = None if timings_ns is None else dict(timings_ns)
        for model in self._queues:
            self._seed(device, model, now_ns)

    def lose_device(self, device: str, now_ns: int, back_ns: int | None = None) -> None:
        """Count a device out; what it runs is the caller's to put back.

        Args:
            device: Which; it may have been counted out before, and be expected at another moment.
            now_ns: The moment.
            back_ns: When it is expected back, with the models that it had; None: never.
        """
        if back_ns is None:
            self._returns.pop(device, None)
            self._away.forget(device)
        else:
            self._returns[device] = _Return(back_ns, now_ns)
            for model in self._queues:
                if (curve := self._costs[model].get(device)) is not None:
                    self._away.keep(device, model, curve)
        for by_device in (self._free_ns, self._running, self._ended_ns, self._timings_ns):
            by_device.pop(device, None)
        self._costs.forget(device)

    def has(self, model: ModelKey) -> bool:
        """Whether there is a queue for a model."""
        return model in self._queues

    def runs(self, model: ModelKey) -> bool:
        """Whether a device is there that has the model."""
        return bool(self._costs[model])

    def takes(self, model: ModelKey) -> bool:
        """Whether a device is there that has the model, or is expected."""
        return self.runs(model) or bool(self._away[model])

    def back_ns(self, model: ModelKey) -> int | None:
        """When a device that has the model was said to be back; None: one is there, or none is expected."""
        if self.runs(model):
            return None
        return min((self._returns[device].expected_ns for device in self._away[model]), default=None)

    @property
    def uniform(self) -> bool:
        """Whether every device has every model."""
        devices = len(self._free_ns)
        return devices == 1 or all(len(self._costs[model]) == devices for model in self._queues)

    def limits(self, model: ModelKey) -> Limits:
        """Bounds of a model's queue."""
        return self._queues[model].limits

    def submit(self, model: ModelKey, entry: Entry, now_ns: int) -> Refusal | None:
        """Queue a request, or say why not; a device must be there that has the model, or be expected."""
        if not self.runs(model):
            return self._submit_ahead(model, entry, now_ns)
        # Only deadlines are judged by what runs.
        idle = entry.deadline_ns is not None and not all(self._running[device] for device in self._costs[model])
        refusal = admit(now_ns, model, entry, self._queues, self._costs, self._free_ns, idle=idle)
        if refusal is None:
            self._add(self._queues[model], entry)
        elif refusal.judged is not None:
            device, rows = refusal.judged
            self._costs.doubt(device, model, rows, now_ns)
        return refusal

    def first_free(self, devices: Iterable[str]) -> str:
        """Which of these is expected to have ended its batches first; lost ones last."""
        return min(devices, key=lambda device: self._free_ns.get(device, math.inf))

    def has_full_batch(self, model: ModelKey) -> bool:
        """Whether as many rows of a model wait as a batch may have."""
        queue = self._queues[model]
        return queue.rows >= queue.limits.max_batch_rows

    def put_back(self, model: ModelKey, entries: Sequence[Entry]) -> None:
        """Queue requests again that a lost device had taken: before all others, whatever the queue's bound says."""
        for entry in entries:
            self._add(self._queues[model], entry.again())

    def cancel(self, model: ModelKey, ticket: int) -> None:
        """Forget a request if it still waits."""
        if model in self._queues:
            self._queues[model].remove(ticket)

    def take(self, device: str, now_ns: int, *, ahead: bool = False) -> Decision:
        """Decide for a device that is idle now, and let its batch and what is dropped leave the queues.

        Args:
            device: Which.
            now_ns: The moment.
            ahead: It is busy, and is given the next batch already, if there is a full one.
        """
        decision = choose(now_ns, device, self._queues, self._costs, self._free_ns, ahead=ahead)
        for dropped in decision.dropped:
            self._costs.doubt(device, dropped.model, dropped.rows, now_ns)
            for entry in dropped.entries:
                self._queues[dropped.model].remove(entry.ticket)
        if decision.model is not None:
            queue = self._queues[decision.model]
            queue.take(decision.batch, decision.rows)
            self._served_ns = queue.served_ns
            queue.served_ns += max(1, decision.expected_ns)  # models of which nothing is known take turns
            self._free_ns[device] = max(now_ns, self._free_ns[device]) + decision.expected_ns
            self._running[device].append(decision)
        return decision

    def complete(self, device: str, decision: Decision, now_ns: int, *, failed: bool = False) -> int:
        """A device has ended a batch and delivered its answers.

        Args:
            device: Where it ran.
            decision: What `take` said.
            now_ns: The moment.
            failed: It says nothing about costs.

        Returns:
            What the batch took: since it was taken, or since the device ended the one before, which is later where a device is
            given a batch while it runs another.
        """
        took_ns = max(1, now_ns - max(decision.now_ns, self._ended_ns.get(device, 0)))
        if device not in self._free_ns:
            return took_ns
        running = self._running[device]
        running.remove(decision)
        self._free_ns[device] = now_ns + sum(other.expected_ns for other in running)
        if not failed:
            self._ended_ns[device] = now_ns
            assert decision.model is not None
            # The model may have gone meanwhile: from the device, or altogether, once all its requests were answered.
            if (queue := self._queues.get(decision.model)) is not None:
                queue.served_ns += took_ns - decision.expected_ns
                if device in self._costs[decision.model]:
                    self._costs.measure(device, decision.model, decision.rows, took_ns, now_ns)
        return took_ns

    def expire(self, now_ns: int) -> list[Entry]:
        """Remove every request that no device could answer in time, were it the only one, from now or from its return on."""
        expired: list[Entry] = []
        for model, queue in self._queues.items():
            if len(queue):
                begins_ns = max(now_ns, self.back_ns(model) or now_ns)
                expired += queue.expire(begins_ns + self._least_cost_ns(model))
        return expired

    def next_expiry_ns(self) -> int | None:
        """When `expire` has something to do, if it was called since a device was lost; None while nothing has a deadline."""
        found = (
            (model, deadline_ns)
            for model, queue in self._queues.items()
            if (deadline_ns := queue.next_deadline_ns()) is not None
        )
        return min((deadline_ns - self._least_cost_ns(model) for model, deadline_ns in found), default=None)

    def drain(self, model: ModelKey | None = None) -> None:
        """Wait for company no more: no more requests for a model are coming; None: for none."""
        for queue in self._queues.values() if model is None else (self._queues[model],):
            queue.drained = True

    def abandon(self, *, stranded: bool = False) -> list[Entry]:
        """Remove everything, or what is stranded: what no device is left to run, nor expected."""
        queues = (queue for model, queue in self._queues.items() if not (stranded and self.takes(model)))
        return [entry for queue in queues for entry in queue.clear()]

    def _submit_ahead(self, model: ModelKey, entry: Entry, now_ns: int) -> Refusal | None:
        """Queue a request for a device that is expected back, or say why not.

        One that is overdue is expected later than that, so that requests without the time do not wait for it in vain.
        """
        back_ns = {device: self._returns[device].after(now_ns) for device in self._returns}
        refusal = admit(now_ns, model, entry, self._queues, self._away, back_ns, idle=False)
        if refusal is None:
            self._add(self._queues[model], entry)
        elif refusal.reason is Rejection.OVERLOADED:
            return replace(refusal, reason=Rejection.RESTARTING)
        elif refusal.reason is Rejection.QUEUE_FULL:
            away_ns = min(back_ns[device] for device in self._away[model]) - now_ns
            return replace(refusal, retry_after_ns=away_ns + refusal.retry_after_ns)
        return refusal

    def _add(self, queue: ModelQueue, entry: Entry) -> None:
        if not len(queue):
            # Time in which a model asked for nothing gives it no right to more than its share now.
            queue.served_ns = max(queue.served_ns, self._served_ns)
        queue.add(entry)

    def _seed(self, device: str, model: ModelKey, now_ns: int) -> None:
        had = self._timings_ns[device]
        if had is not None and model not in had:
            return
        timings_ns = {} if had is None else had[model]
        rows = self._queues[model].limits.max_batch_rows
        learned = None if self._recall is None else self._recall(device, model, rows, timings_ns)
        self._costs.seed(device, model, rows, timings_ns, now_ns, learned)

    def _least_cost_ns(self, model: ModelKey) -> int:
        curves = self._costs[model] or self._away[model]
        return min((curve.bound_ns(1) for curve in curves.values()), default=0)
