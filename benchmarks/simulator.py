"""Replays requests against the real scheduling policy, with a clock that jumps from event to event.

Arrivals are open-loop: they come when they come, whatever became of the ones before. A device takes what a service-time model says,
which the policy learns from the batches that end, as in the server.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dnnserve.envelope import ModelKey
from dnnserve.scheduling.admission import Refusal, Rejection
from dnnserve.scheduling.dispatcher import Dispatcher
from dnnserve.scheduling.entry import Entry, Limits
from dnnserve.scheduling.outlook import Outlook
from dnnserve.scheduling.policy import Decision

__all__ = ["Arrival", "Device", "Outcome", "Simulation", "linear", "poisson", "with_hiccups"]

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes. Immutable.

    Args:
        at_ns: When.
        model: For which model.
        rows: Its rows.
        slack_ns: From then to its deadline; None: it has none.
        priority: As in `Entry`.
    """

    at_ns: int
    model: ModelKey
    rows: int = 1
    slack_ns: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request. Immutable.

    Args:
        arrival: The request.
        end_ns: When it left.
        end: "answered", "refused" at arrival, "dropped" from the queue.
        batch_rows: Of the batch that answered it.
    """

    arrival: Arrival
    end_ns: int
    end: str
    batch_rows: int = 0

    @property
    def late(self) -> bool:
        """Whether it was answered after its deadline."""
        slack_ns = self.arrival.slack_ns
        return self.end == "answered" and slack_ns is not None and self.latency_ns > slack_ns

    @property
    def good(self) -> bool:
        """Whether it was answered in time."""
        return self.end == "answered" and not self.late

    @property
    def latency_ns(self) -> int:
        """From arrival to the end."""
        return self.end_ns - self.arrival.at_ns


ServiceTime = Callable[[ModelKey, int], int]
"""Nanoseconds that a batch takes, by model and rows; called once per batch."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a simulation. Immutable.

    Args:
        name: Unique.
        service: What its batches take.
        lost_at_ns: When it fails, and puts back what it runs; None: never.
        away_ns: After how long it is back; None: it is not.
        expected_away_ns: What the policy is told of that; None: the truth.
    """

    name: str
    service: ServiceTime
    lost_at_ns: int | None = None
    away_ns: int | None = None
    expected_away_ns: int | None = None


def linear(base_ms: float, row_ms: float, jitter: float = 0.0, seed: int = 0) -> ServiceTime:
    """A batch takes base + rows * row milliseconds, times a factor of which `jitter` is the standard deviation.

    The factor is log-normal with a mean of 1, so that it is never negative and the capacity is the same with any jitter.
    """
    generator = random.Random(seed)
    sigma = math.sqrt(math.log1p(jitter * jitter))

    def service(_model: ModelKey, rows: int) -> int:
        factor = generator.lognormvariate(-sigma * sigma / 2, sigma) if jitter else 1.0
        return int((base_ms + rows * row_ms) * 1e6 * factor)

    return service


def with_hiccups(service: ServiceTime, part: float, mean_ms: float, seed: int = 0) -> ServiceTime:
    """The same on a host that has other things to do: such a part of the batches takes longer, exponentially distributed."""
    generator = random.Random(seed)

    def interrupted(model: ModelKey, rows: int) -> int:
        more_ms = generator.expovariate(1 / mean_ms) if generator.random() < part else 0.0
        return service(model, rows) + int(more_ms * 1e6)

    return interrupted


def poisson(
    model: ModelKey,
    rate: float,
    seconds: float,
    deadlines_ms: Sequence[float | None] = (None,),
    seed: int = 0,
    start_s: float = 0.0,
    rows: Sequence[int] = (1,),
    priorities: Sequence[int] = (0,),
) -> Iterator[Arrival]:
    """Requests at so many a second, each with one of the deadlines, numbers of rows and priorities."""
    generator = random.Random(seed)
    slacks_ns = [None if ms is None else int(ms * 1e6) for ms in deadlines_ms]
    at_s, end_s = start_s, start_s + seconds
    while (at_s := at_s + generator.expovariate(rate)) < end_s:
        chosen = (generator.choice(rows), generator.choice(slacks_ns), generator.choice(priorities))
        yield Arrival(int(at_s * SECOND_NS), model, *chosen)


@dataclass(slots=True)
class Simulation:
    """One run. Owned by one thread; not checked.

    Args:
        devices: At least one.
        models: Rows and requests that each may have.
        timings_ns: What warm-up says of each device and model, by rows; without it nothing is known at the start.
        policy: What decides.
        sweep_ns: How often expired requests are looked for while devices are busy.
        blind: The policy is told of no deadline, as in servers that do not schedule by them; outcomes are judged all the same.
        outlook: By which requests are refused unread, as a front end does; None: all are read.

    Attributes:
        unread: How many were refused so.
    """

    devices: Sequence[Device]
    models: Mapping[ModelKey, Limits]
    timings_ns: Mapping[str, Mapping[ModelKey, Mapping[int, int]]] = field(default_factory=dict)
    policy: Dispatcher = field(default_factory=Dispatcher)
    sweep_ns: int = 10_000_000
    blind: bool = False
    outlook: Outlook | None = None
    unread: int = 0
    busy_ns: dict[str, int] = field(default_factory=dict)
    batches: list[tuple[str, ModelKey, int]] = field(default_factory=list)

    def run(self, arrivals: Iterator[Arrival] | Sequence[Arrival], record: Callable[[Outcome], None]) -> None:
        """Feed the arrivals, which come in the order of time, and record every request's end."""
        policy = self.policy
        for device in self.devices:
            policy.add_device(device.name, self.timings_ns.get(device.name), 0)
            self.busy_ns[device.name] = 0
        for model, limits in self.models.items():
            policy.add_model(model, limits, 0)
        by_name = {device.name: device for device in self.devices}
        idle = dict.fromkeys(by_name)  # in a fixed order
        waiting: dict[int, Arrival] = {}
        ends: list[tuple[int, str, Decision]] = []
        losses = sorted((d.lost_at_ns, d.name) for d in self.devices if d.lost_at_ns is not None)
        returns: list[tuple[int, str]] = []
        source = iter(arrivals)
        coming = next(source, None)
        ticket, sweep_at_ns, look_at_ns = 0, 0, None
        while coming is not None or ends or waiting:
            moments = [coming.at_ns if coming else None, ends[0][0] if ends else None, look_at_ns]
            moments += [losses[0][0]] if losses else []
            moments += [returns[0][0]] if returns else []
            now_ns = min((moment for moment in moments if moment is not None), default=None)
            if now_ns is None:
                break  # nothing will ever happen: what waits starves, which the caller sees from what is missing
            if losses and losses[0][0] == now_ns:
                name = losses.pop(0)[1]
                device, back_ns = by_name[name], None
                if device.away_ns is not None:
                    heapq.heappush(returns, (now_ns + device.away_ns, name))
                    expected_ns = device.away_ns if device.expected_away_ns is None else device.expected_away_ns
                    back_ns = now_ns + expected_ns
                policy.lose_device(name, now_ns, back_ns)
                sweep_at_ns = now_ns
                idle.pop(name, None)
                for end in [end for end in ends if end[1] == name]:
                    ends.remove(end)
                    heapq.heapify(ends)
                    assert end[2].model is not None
                    policy.put_back(end[2].model, end[2].batch)
            elif returns and returns[0][0] == now_ns:
                name = heapq.heappop(returns)[1]
                policy.add_device(name, self.timings_ns.get(name), now_ns)
                idle[name] = None
            elif ends and ends[0][0] == now_ns:
                _, name, decision = heapq.heappop(ends)
                policy.complete(name, decision, now_ns)
                for entry in decision.batch:
                    record(Outcome(waiting.pop(entry.ticket), now_ns, "answered", decision.rows))
                idle[name] = None
            elif coming is not None and coming.at_ns == now_ns:
                ticket += 1
                deadline_ns = None if coming.slack_ns is None or self.blind else now_ns + coming.slack_ns
                entry = Entry.of(ticket, coming.rows, now_ns, deadline_ns, coming.priority)
                if self._is_late(deadline_ns, now_ns):
                    self.unread += 1
                    record(Outcome(coming, now_ns, "refused"))
                elif (refusal := policy.submit(coming.model, entry, now_ns)) is None:
                    waiting[ticket] = coming
                else:
                    self._hear(refusal, deadline_ns, now_ns)
                    record(Outcome(coming, now_ns, "refused"))
                coming = next(source, None)
            dropped: list[Entry] = []
            if now_ns >= sweep_at_ns:
                dropped += policy.expire(now_ns)
                sweep_at_ns = now_ns + self.sweep_ns
            look_at_ns = None
            for name in tuple(idle):
                decision = policy.take(name, now_ns)
                dropped += [entry for drop in decision.dropped for entry in drop.entries]
                if decision.model is not None:
                    del idle[name]
                    took_ns = by_name[name].service(decision.model, decision.rows)
                    self.busy_ns[name] += took_ns
                    self.batches.append((name, decision.model, decision.rows))
                    heapq.heappush(ends, (now_ns + took_ns, name, decision))
                elif decision.look_again_ns is not None:
                    look_at_ns = min(look_at_ns or decision.look_again_ns, decision.look_again_ns)
            for entry in dropped:
                record(Outcome(waiting.pop(entry.ticket), now_ns, "dropped"))

    def _is_late(self, deadline_ns: int | None, now_ns: int) -> bool:
        """Whether a request is refused unread."""
        if self.outlook is None or deadline_ns is None:
            return False
        return self.outlook.late_ns(now_ns, deadline_ns) is not None

    def _hear(self, refusal: Refusal, deadline_ns: int | None, now_ns: int) -> None:
        """Let those learn of a refusal that refuse unread."""
        if self.outlook is None or deadline_ns is None:
            return
        if refusal.reason is Rejection.OVERLOADED:
            self.outlook.hear(now_ns, deadline_ns, deadline_ns + refusal.retry_after_ns)
        elif refusal.reason is Rejection.UNREACHABLE:
            self.outlook.hear_least(now_ns, refusal.needed_ns)
