"""The requests that wait for one model, in the order of their turns.

Those whose deadlines are near stand in one line, in the order of deadlines; those that can wait stand in another, and their turn
comes when their patience ends (`Entry.turn_ns`). Of two whose turn it is the older goes first, but neither line may hold up the
other: when requests wait in both, rows are taken from one as often as from the other.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from operator import itemgetter

from dnnserve.scheduling.costs import Curve
from dnnserve.scheduling.entry import Entry, Limits

__all__ = ["ModelQueue"]

_TURN = itemgetter(0)

_LOOK_AHEAD = 2
"""Batches of requests that are looked at for one: beyond, nothing is sought that fits into what is left of it."""


class ModelQueue:
    """The queue of one model. Owned by one thread; not checked: the scheduler calls it under its lock.

    Args:
        limits: Bounds, fixed for its life.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.rows = 0
        """Rows that wait."""
        self.served_ns = 0.0
        """Device time that the model was given, as far as fairness goes; the policy compares it with other models'."""
        self.last_batch_rows = 0
        """Rows of the batch that was taken last: about as many as the next will have when it is waited for."""
        self.drained = False
        """Whether no more requests are coming, so that there is no company to wait for."""
        self._hurried: list[Entry] = []
        self._patient: list[Entry] = []
        self._waiting: dict[int, Entry] = {}  # by ticket, in the order in which they came
        self._patient_lead = 0  # rows that the patient have been given beyond those of the hurried while both waited
        self._deadlines: list[tuple[int, int]] = []  # heap of (deadline_ns, ticket); may name tickets that have left
        self._holding = limits.hold_until_requests > 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entry: Entry) -> None:
        """Give a request its place."""
        if entry.rows < 1 or entry.ticket in self._waiting:
            raise ValueError(f"{entry} has no rows or is queued already")
        insort(self._hurried if entry.hurried else self._patient, entry)
        self._waiting[entry.ticket] = entry
        self.rows += entry.rows
        if entry.deadline_ns is not None:
            heapq.heappush(self._deadlines, (entry.deadline_ns, entry.ticket))
        if self._holding and len(self._waiting) >= self.limits.hold_until_requests:
            self._holding = False

    def remove(self, ticket: int) -> Entry | None:
        """Take a request out wherever it stands; None when it has left already."""
        entry = self._waiting.pop(ticket, None)
        if entry is None:
            return None
        self.rows -= entry.rows
        line = self._hurried if entry.hurried else self._patient
        del line[bisect_left(line, entry)]
        self._tidy()
        return entry

    def rows_before(self, entry: Entry, ends_ns: int) -> int:
        """Rows that go before a request which is not queued yet: about, where requests have different numbers of them.

        Those that will be too late for the next batch, which will have ended at a moment, do not count: they make way.
        """
        line, other = (self._hurried, self._patient) if entry.hurried else (self._patient, self._hurried)
        before = bisect_left(line, entry)
        if other:
            before += min(bisect_left(other, entry), before + 1)
        if self._hurried and self._hurried[0].turn_ns <= ends_ns:
            before -= min(before, bisect_right(self._hurried, ends_ns, key=_TURN))
        return before * self.rows // len(self._waiting) if before else 0

    def pick(self, ends_ns: int, max_rows: int) -> tuple[list[Entry], int, list[Entry]]:
        """The next requests that fill a batch which will have ended at a moment, their rows, and those too late for it.

        What does not fit into the rows that are left is passed by for what does, and goes with the next batch at the latest.
        """
        batch: list[Entry] = []
        late: list[Entry] = []
        hurried, patient, lead = self._hurried, self._patient, self._patient_lead
        rows = unfit = h = p = 0
        while rows < max_rows and h + p < len(self._waiting) and unfit < _LOOK_AHEAD * max_rows:
            if p < len(patient) and (
                h == len(hurried) or (patient[p] < hurried[h] and (lead <= 0 or patient[p].repeated))
            ):
                entry, sign = patient[p], 1
                p += 1
            else:
                entry, sign = hurried[h], -1
                h += 1
            if entry.deadline_ns is not None and entry.deadline_ns <= ends_ns:
                late.append(entry)
            elif rows + entry.rows <= max_rows:
                batch.append(entry)
                rows += entry.rows
                lead += sign * entry.rows
            else:
                unfit += 1
        return batch, rows, late

    def take(self, batch: list[Entry], rows: int) -> None:
        """Let a batch go that was picked."""
        self.last_batch_rows = rows
        self.rows -= rows
        if self._hurried and self._patient:
            hurried = [entry for entry in batch if entry.hurried]
            patient = [entry for entry in batch if not entry.hurried]
            lead = sum(entry.rows for entry in patient) - sum(entry.rows for entry in hurried)
            self._patient_lead = max(0, self._patient_lead + lead)
            _cut(self._hurried, hurried)
            _cut(self._patient, patient)
        else:
            self._patient_lead = 0
            _cut(self._hurried or self._patient, batch)
        for entry in batch:
            del self._waiting[entry.ticket]
        self._tidy()

    def expire(self, before_ns: int) -> list[Entry]:
        """Remove requests whose deadlines do not come after a moment, the earliest first."""
        late: list[Entry] = []
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= before_ns:
            entry = self.remove(self._deadlines[0][1])
            assert entry is not None
            late.append(entry)
        return late

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of all that wait."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def company_ns(self, now_ns: int, curve: Curve) -> int | None:
        """Until when the queue waits for company though a device is idle: now, if not at all; None: until something happens."""
        if self.drained or not (self._holding or self.limits.max_queue_delay_ns):
            return now_ns
        if self._holding:
            return None
        if self.rows >= self.limits.max_batch_rows:
            return now_ns
        oldest = next(iter(self._waiting.values()))
        end_ns = now_ns if oldest.repeated else oldest.arrival_ns + self.limits.max_queue_delay_ns
        deadline_ns = self.next_deadline_ns()
        # Waiting until a deadline would make sure that it is missed: then there is nothing to wait for.
        return now_ns if deadline_ns is not None and deadline_ns - curve.bound_ns(1) <= end_ns else max(now_ns, end_ns)

    def clear(self) -> tuple[Entry, ...]:
        """Remove everything, in the order in which it came."""
        entries = tuple(self._waiting.values())
        for line in (self._hurried, self._patient, self._waiting, self._deadlines):
            line.clear()
        self.rows = 0
        return entries

    def _tidy(self) -> None:
        # Long deadlines at a high rate would leave a heap full of requests that were answered long ago.
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [item for item in self._deadlines if item[1] in self._waiting]
            heapq.heapify(self._deadlines)


def _cut(line: list[Entry], gone: list[Entry]) -> None:
    if line[: len(gone)] == gone:
        del line[: len(gone)]
    else:
        for entry in gone:
            del line[bisect_left(line, entry)]
