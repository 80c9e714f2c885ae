"""When which requests run together: a pure state machine for one model's queue.

Time and events come in, decisions go out. There are no threads here, no clock, no arrays and no protocol; `scheduler.py` is the
mechanism around it. The rules:

* Requests leave in the order in which they came; a batch is the longest head of the queue whose rows fit.
* An idle device takes what is there at once. Waiting for company (`max_queue_delay_ns`) happens only when asked for, never
  once a full batch is there, and never past a deadline.
* A request leaves exactly once: in a batch, expired, cancelled, or abandoned. None is started at or after its deadline. The one
  exception: a batch whose device was lost under it is put back to where it came from, the head of the queue.
* With an estimate of a batch's duration, a request that could not finish in time is dropped before it wastes a slot, judged by
  the batch that the queue would fill: shrinking batches to rescue the head costs more requests than it saves under overload.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Batcher", "Decision", "Entry", "Limits", "Rejection"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one model's queue and batches. Immutable.

    Args:
        max_batch_rows: Rows of a batch; also of a request.
        max_queue_requests: Requests that may wait.
        max_queue_delay_ns: How long the oldest request waits for company while a device is idle; 0: not at all.
        hold_until_requests: Nothing is taken before this many requests wait at once, the first time only: makes the first batches
            of a test deterministic.
    """

    max_batch_rows: int
    max_queue_requests: int
    max_queue_delay_ns: int = 0
    hold_until_requests: int = 0

    def __post_init__(self) -> None:
        if self.max_batch_rows < 1 or self.max_queue_requests < 1:
            raise ValueError(
                f"max_batch_rows {self.max_batch_rows} and max_queue_requests {self.max_queue_requests} must be 1 or more"
            )
        if self.max_queue_delay_ns < 0 or not 0 <= self.hold_until_requests <= self.max_queue_requests:
            raise ValueError(
                f"max_queue_delay_ns {self.max_queue_delay_ns} must not be negative, hold_until_requests "
                f"{self.hold_until_requests} must lie in 0..{self.max_queue_requests}"
            )


@dataclass(frozen=True, slots=True)
class Entry:
    """What the policy needs to know of a request. Immutable.

    Args:
        ticket: Unique among all requests ever submitted.
        rows: Its share of a batch.
        arrival_ns: When it was submitted.
        deadline_ns: It must be started before this moment; None: whenever.
    """

    ticket: int
    rows: int
    arrival_ns: int
    deadline_ns: int | None = None


class Rejection(Enum):
    """Why a request was not admitted. Immutable."""

    TOO_MANY_ROWS = auto()
    DEADLINE_PASSED = auto()
    QUEUE_FULL = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """What leaves the queue now: at most one batch, and everything that came too late. Immutable."""

    batch: tuple[Entry, ...] = ()
    expired: tuple[Entry, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return sum(entry.rows for entry in self.batch)


class Batcher:
    """The queue of one model. Owned by one thread; not checked: the scheduler calls it under its lock.

    Args:
        limits: Bounds, fixed for its life.
        batch_cost_ns: Estimate of how long a batch of so many rows takes, for early drop; None: drop only what has expired.
    """

    def __init__(self, limits: Limits, batch_cost_ns: Callable[[int], int] | None = None) -> None:
        self.limits = limits
        self._batch_cost_ns = batch_cost_ns
        self._queue: OrderedDict[int, Entry] = OrderedDict()
        self._rows = 0
        self._deadlines: list[tuple[int, int]] = []  # heap of (deadline_ns, ticket); may name tickets that have left
        self._holding = limits.hold_until_requests > 0
        self._draining = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._rows

    def submit(self, entry: Entry, now_ns: int) -> Rejection | None:
        """Admit the request to the end of the queue, or say why not."""
        if entry.rows < 1 or entry.ticket in self._queue:
            raise ValueError(f"{entry} has no rows or is queued already")
        if entry.rows > self.limits.max_batch_rows:
            return Rejection.TOO_MANY_ROWS
        if entry.deadline_ns is not None and entry.deadline_ns <= now_ns:
            return Rejection.DEADLINE_PASSED
        if len(self._queue) >= self.limits.max_queue_requests:
            return Rejection.QUEUE_FULL
        self._queue[entry.ticket] = entry
        self._rows += entry.rows
        if entry.deadline_ns is not None:
            heapq.heappush(self._deadlines, (entry.deadline_ns, entry.ticket))
        if len(self._queue) >= self.limits.hold_until_requests:
            self._holding = False
        return None

    def put_back(self, entries: Sequence[Entry]) -> None:
        """Queue requests again that a lost device had taken: in their order, before all others, whatever the queue's bound says."""
        for entry in reversed(entries):
            if entry.ticket in self._queue:
                raise ValueError(f"{entry} is queued already")
            self._queue[entry.ticket] = entry
            self._queue.move_to_end(entry.ticket, last=False)
            self._rows += entry.rows
            if entry.deadline_ns is not None:
                heapq.heappush(self._deadlines, (entry.deadline_ns, entry.ticket))

    def cancel(self, ticket: int) -> Entry | None:
        """Remove a request that still waits; None when it has left already."""
        return self._remove(ticket) if ticket in self._queue else None

    def take(self, now_ns: int) -> Decision:
        """Decide for a device that is idle now."""
        expired = self.expire(now_ns)
        if not self._queue or self._waits_for_company(now_ns):
            return Decision((), expired)
        batch: list[Entry] = []
        rows = 0
        while self._queue:
            head = next(iter(self._queue.values()))
            if rows + head.rows > self.limits.max_batch_rows:
                break
            batch.append(self._remove(head.ticket))
            rows += head.rows
        return Decision(tuple(batch), expired)

    def expire(self, now_ns: int) -> tuple[Entry, ...]:
        """Remove every request that can no longer be started in time."""
        late: list[Entry] = []
        while (deadline_ns := self._earliest_deadline_ns()) is not None:
            if deadline_ns > now_ns + self._next_batch_cost_ns():
                break
            late.append(self._remove(self._deadlines[0][1]))
        return tuple(late)

    def drain(self) -> None:
        """Stop waiting for company: what is queued is final."""
        self._draining = True

    def abandon(self) -> tuple[Entry, ...]:
        """Remove everything: nobody is left to run it."""
        entries = tuple(self._queue.values())
        self._queue.clear()
        self._deadlines.clear()
        self._rows = 0
        return entries

    def next_expiry_ns(self) -> int | None:
        """The earliest moment at which `expire` has something to remove; None while nothing has a deadline."""
        deadline_ns = self._earliest_deadline_ns()
        return None if deadline_ns is None else deadline_ns - self._next_batch_cost_ns()

    def next_take_ns(self, now_ns: int) -> int | None:
        """The moment from which `take` gives a batch if nothing else happens; None: not without another event."""
        if not self._queue or (self._holding and not self._draining):
            return None
        return max(now_ns, self._company_ends_ns()) if self._waits_for_company(now_ns) else now_ns

    def _waits_for_company(self, now_ns: int) -> bool:
        if self._draining:
            return False
        if self._holding:
            return True
        return self._rows < self.limits.max_batch_rows and now_ns < self._company_ends_ns()

    def _company_ends_ns(self) -> int:
        oldest = next(iter(self._queue.values()))
        end_ns = oldest.arrival_ns + self.limits.max_queue_delay_ns
        expiry_ns = self.next_expiry_ns()
        # Waiting until a deadline would make sure that it is missed: then there is nothing to wait for.
        return oldest.arrival_ns if expiry_ns is not None and expiry_ns <= end_ns else end_ns

    def _next_batch_cost_ns(self) -> int:
        if self._batch_cost_ns is None or not self._queue:
            return 0
        return self._batch_cost_ns(min(self._rows, self.limits.max_batch_rows))

    def _earliest_deadline_ns(self) -> int | None:
        while self._deadlines and self._deadlines[0][1] not in self._queue:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _remove(self, ticket: int) -> Entry:
        entry = self._queue.pop(ticket)
        self._rows -= entry.rows
        # Long deadlines at a high rate would leave a heap full of requests that were answered long ago.
        if len(self._deadlines) > 2 * len(self._queue) + 64:
            self._deadlines = [item for item in self._deadlines if item[1] in self._queue]
            heapq.heapify(self._deadlines)
        return entry
