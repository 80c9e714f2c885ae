"""The batcher against any order of events: what must hold after each, whatever the deadlines, sizes and settings."""

from __future__ import annotations

from dnnserve.batcher import Batcher, Entry, Limits, Rejection
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

MAX_ROWS = 6
MAX_QUEUE = 5


class BatcherMachine(RuleBasedStateMachine):
    """`waiting` is the model: the queue as a plain list, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.submitted = 0
        self.waiting: list[Entry] = []
        self.left: list[int] = []  # tickets in the order in which they left, for whatever reason
        self.running: tuple[Entry, ...] = ()  # the batch taken last, until its device is done or lost
        self.batcher: Batcher
        self.limits: Limits
        self.cost_ns = 0
        self.patient = True  # still allowed to wait for company

    @initialize(
        delay_ns=st.sampled_from([0, 0, 7]), hold=st.sampled_from([0, 0, 3]), cost_ns=st.sampled_from([0, 0, 2])
    )
    def configure(self, delay_ns: int, hold: int, cost_ns: int) -> None:
        self.limits = Limits(MAX_ROWS, MAX_QUEUE, delay_ns, hold)
        self.cost_ns = cost_ns
        self.holding = hold > 0
        self.batcher = Batcher(self.limits, (lambda rows: rows * cost_ns) if cost_ns else None)

    @rule(rows=st.integers(1, MAX_ROWS + 1), slack_ns=st.none() | st.integers(-1, 30))
    def submit(self, rows: int, slack_ns: int | None) -> None:
        self.submitted += 1
        deadline_ns = None if slack_ns is None else self.now_ns + slack_ns
        entry = Entry(self.submitted, rows, self.now_ns, deadline_ns)
        rejection = self.batcher.submit(entry, self.now_ns)
        if rows > MAX_ROWS:
            assert rejection is Rejection.TOO_MANY_ROWS
        elif slack_ns is not None and slack_ns <= 0:
            assert rejection is Rejection.DEADLINE_PASSED
        elif len(self.waiting) >= MAX_QUEUE:
            assert rejection is Rejection.QUEUE_FULL
        else:
            assert rejection is None
            self.waiting.append(entry)
            self.holding = self.holding and len(self.waiting) < self.limits.hold_until_requests
        if rejection is not None:
            self.left.append(entry.ticket)

    @rule(step_ns=st.integers(1, 10))
    def let_time_pass(self, step_ns: int) -> None:
        self.now_ns += step_ns

    @rule(ticket=st.integers(1, 40))
    def cancel(self, ticket: int) -> None:
        entry = self.batcher.cancel(ticket)
        assert entry == next((item for item in self.waiting if item.ticket == ticket), None)
        if entry is not None:
            self.leave((entry,))

    @rule()
    def expire(self) -> None:
        self.leave_late(self.batcher.expire(self.now_ns))

    @rule()
    def take(self) -> None:
        announced_ns = self.batcher.next_take_ns(self.now_ns)
        decision = self.batcher.take(self.now_ns)
        self.leave_late(decision.expired)
        rows = sum(entry.rows for entry in decision.batch)
        assert rows <= MAX_ROWS
        assert decision.batch == tuple(self.waiting[: len(decision.batch)]), "not the head of the queue, in order"
        assert all(e.deadline_ns is None or self.now_ns < e.deadline_ns for e in decision.batch), "started too late"
        rest = self.waiting[len(decision.batch) :]
        if decision.batch:
            assert not rest or rows + rest[0].rows > MAX_ROWS, "the batch could have been larger"
        elif self.waiting:
            assert self.patient, "an idle device was left without work"
            assert self.holding or self.limits.max_queue_delay_ns, "waited though nobody asked for it"
            if not self.holding:
                assert self.now_ns - self.waiting[0].arrival_ns < self.limits.max_queue_delay_ns
                assert sum(entry.rows for entry in self.waiting) < MAX_ROWS, "a full batch had to wait"
        if not decision.expired:
            assert bool(decision.batch) == (announced_ns == self.now_ns), "next_take_ns announced something else"
        self.leave(decision.batch)
        self.running = decision.batch

    @precondition(lambda self: self.running)
    @rule()
    def lose_the_device(self) -> None:
        self.batcher.put_back(self.running)
        self.waiting = [*self.running, *self.waiting]
        for entry in self.running:
            self.left.remove(entry.ticket)
        self.running = ()

    @rule()
    def drain(self) -> None:
        self.batcher.drain()
        self.patient = False

    @precondition(lambda self: self.submitted > 10)
    @rule()
    def abandon(self) -> None:
        entries = self.batcher.abandon()
        assert entries == tuple(self.waiting)
        self.leave(entries)

    def leave(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            self.waiting.remove(entry)
            self.left.append(entry.ticket)

    def leave_late(self, expired: tuple[Entry, ...]) -> None:
        worst_ns = self.now_ns + MAX_ROWS * self.cost_ns
        for entry in expired:
            assert entry.deadline_ns is not None
            assert entry.deadline_ns <= worst_ns, "given up though there was time"
        self.leave(expired)
        assert all(e.deadline_ns is None or e.deadline_ns > self.now_ns for e in self.waiting), "expired, yet kept"

    @invariant()
    def each_request_waits_or_has_left_exactly_once(self) -> None:
        assert sorted([*self.left, *(entry.ticket for entry in self.waiting)]) == list(range(1, self.submitted + 1))

    @invariant()
    def the_counters_are_those_of_the_queue(self) -> None:
        if hasattr(self, "batcher"):
            assert len(self.batcher) == len(self.waiting)
            assert self.batcher.rows == sum(entry.rows for entry in self.waiting)


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
