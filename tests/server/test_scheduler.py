from __future__ import annotations

import queue
import threading
from functools import partial

import pytest
from dnnserve.batch import Batch
from dnnserve.envelope import Answer, BatchTimes, Completion, InferenceRequest, ModelKey
from dnnserve.errors import (
    DeadlineExpiredError,
    DeviceLostError,
    ExecutionError,
    InvalidRequestError,
    OverloadedError,
    QueueFullError,
    RequestCancelledError,
    RestartingError,
    UnavailableError,
    UnreachableError,
)
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits

from tests.server.fakes import PATIENCE_S, FakeClock, Inbox, block_of, make_rows, wait_until

TOY, OTHER = ModelKey("toy", 1), ModelKey("other", 1)


class Bench:
    """A scheduler with a clock set by hand and a device that the test itself plays, and a row that took `cost_ms` at warm-up."""

    def __init__(self, limits: Limits | None = None, cost_ms: int = 0, margin_ms: int = 0) -> None:
        self.clock, self.inbox = FakeClock(), Inbox()
        self.recorded: list[Completion] = []
        self.observed: list[tuple[int, int, int]] = []
        self.scheduler = Scheduler(self.clock, [self.recorded.extend], [self.observe], margin_ms * 1_000_000)
        for model in (TOY, OTHER):
            self.scheduler.add_model(model, limits or Limits(8, 4))
        self.scheduler.add_device("cpu", {TOY: {1: cost_ms * 1_000_000}} if cost_ms else None)

    def observe(self, batch: Batch, took_ns: int) -> None:
        self.observed.append((batch.rows, batch.decision.expected_ns, took_ns))

    def submit(
        self, model: ModelKey = TOY, rows: int = 1, deadline_ms: float | None = None, priority: int = 0
    ) -> InferenceRequest:
        now_ns = self.clock()
        deadline_ns = None if deadline_ms is None else now_ns + int(deadline_ms * 1e6)
        block = block_of(make_rows(1.0, rows))
        request = InferenceRequest(model, block, now_ns, deadline_ns, self.inbox.deliver, priority=priority)
        self.scheduler.submit(request)
        return request

    def take(self) -> Batch:
        batch = self.scheduler.take("cpu")
        assert batch is not None
        return batch

    def answers(self, batch: Batch) -> list[Answer]:
        now_ns = self.clock()
        times = BatchTimes(batch.taken_ns, now_ns, now_ns, now_ns)
        return [Answer("cpu", batch.rows, times)] * len(batch.requests)


def test_completions_of_a_batch_come_as_one_list_and_are_recorded_first() -> None:
    bench = Bench()
    requests = (bench.submit(), bench.submit())
    batch = bench.take()
    assert batch.requests == requests
    bench.scheduler.complete(batch, bench.answers(batch))
    (delivery,) = bench.inbox.deliveries
    assert [completion.request for completion in delivery] == list(requests)
    assert bench.recorded == delivery
    assert bench.scheduler.in_flight == 0


def test_models_take_turns() -> None:
    bench = Bench()
    for model in (TOY, TOY, TOY, OTHER, OTHER):
        bench.submit(model, rows=8)
    assert [bench.take().model for _ in range(5)] == [TOY, OTHER, TOY, OTHER, TOY]


def test_requests_that_are_not_admitted_are_completed_at_once() -> None:
    bench = Bench()
    too_large, too_late = bench.submit(rows=9), bench.submit(deadline_ms=-1)
    for _ in range(4):
        bench.submit()
    too_many = bench.submit()
    kinds = [type(bench.inbox.of(request).outcome) for request in (too_large, too_late, too_many)]
    assert kinds == [InvalidRequestError, DeadlineExpiredError, QueueFullError]
    assert bench.scheduler.in_flight == 4


def test_what_would_be_too_late_behind_what_waits_is_refused_at_once_with_the_time_to_come_back() -> None:
    bench = Bench(Limits(1, 10), cost_ms=10)
    bench.submit()
    bench.take()
    bench.submit(deadline_ms=25)
    refused = bench.submit(deadline_ms=26)
    outcome = bench.inbox.of(refused).outcome
    assert isinstance(outcome, OverloadedError)
    assert outcome.retry_after_ms == 5  # it would be answered after 10, 10 and 11.2 ms
    assert "retry after 5 ms" in str(outcome)
    assert bench.scheduler.in_flight == 2


def test_a_deadline_that_no_device_could_meet_is_told_apart_from_overload() -> None:
    bench = Bench(cost_ms=10)
    assert isinstance(bench.inbox.of(bench.submit(deadline_ms=11)).outcome, UnreachableError)


def test_answers_are_due_a_margin_before_their_deadlines() -> None:
    admitted = []
    for margin_ms in (0, 1, 2):
        bench = Bench(cost_ms=10, margin_ms=margin_ms)
        bench.submit(deadline_ms=13)
        admitted.append(bench.scheduler.in_flight)
    assert admitted == [1, 1, 0]


def test_what_a_batch_took_is_observed_and_expected_of_the_next_unless_it_failed() -> None:
    bench = Bench()
    for failed in (False, True, False):
        bench.submit(rows=4)
        batch = bench.take()
        bench.clock.advance_ms(7)
        outcomes = [ExecutionError("it failed")] if failed else bench.answers(batch)
        bench.scheduler.complete(batch, outcomes)
    assert bench.observed == [(4, 0, 7_000_000), (4, 7_000_000, 7_000_000)]
    assert bench.scheduler.costs()[TOY]["cpu"].mean_ns(4) == 7_000_000


def test_what_lost_a_device_is_queued_again_and_counted_once() -> None:
    bench = Bench()
    bench.scheduler.add_device("cuda:1")
    requests = bench.submit(), bench.submit()
    batch = bench.take()
    bench.scheduler.cancel(requests[0].ticket)
    bench.scheduler.lose_device("cpu", "gone")
    assert bench.scheduler.put_back(batch, DeviceLostError("gone")) == 1
    assert bench.scheduler.repeats() == {TOY: 1, OTHER: 0}
    again = bench.scheduler.take("cuda:1")
    assert again is not None
    assert again.requests == requests[1:]
    bench.scheduler.add_device("cuda:2")
    bench.scheduler.lose_device("cuda:1", "gone")
    assert bench.scheduler.put_back(again, DeviceLostError("gone")) == 0
    assert isinstance(bench.inbox.of(requests[1]).outcome, DeviceLostError)


def test_an_important_request_overtakes() -> None:
    bench = Bench(Limits(1, 4))
    first, urgent = bench.submit(), bench.submit(priority=1)
    assert [bench.take().requests for _ in range(2)] == [(urgent,), (first,)]


def test_an_expired_request_is_answered_and_its_batch_mates_run() -> None:
    bench = Bench()
    first, late, last = bench.submit(), bench.submit(deadline_ms=5), bench.submit()
    bench.clock.advance_ms(5)
    batch = bench.take()
    assert batch.requests == (first, last)
    assert isinstance(bench.inbox.of(late).outcome, DeadlineExpiredError)


def test_expire_answers_late_requests_while_every_device_is_busy() -> None:
    bench = Bench()
    late, later = bench.submit(deadline_ms=5), bench.submit(OTHER, deadline_ms=9)
    bench.clock.advance_ms(6)
    assert bench.scheduler.expire() == later.deadline_ns
    assert [completion.request for completion in bench.inbox.completions] == [late]


def test_a_queued_request_that_is_cancelled_never_runs() -> None:
    bench = Bench()
    gone, kept = bench.submit(), bench.submit()
    bench.scheduler.cancel(gone.ticket)
    assert isinstance(bench.inbox.of(gone).outcome, RequestCancelledError)
    assert bench.take().requests == (kept,)


@pytest.mark.parametrize("position", range(4))
def test_cancelling_a_running_request_leaves_its_batch_mates_alone(position: int) -> None:
    bench = Bench()
    requests = [bench.submit() for _ in range(4)]
    batch = bench.take()
    bench.scheduler.cancel(requests[position].ticket)
    assert isinstance(bench.inbox.of(requests[position]).outcome, RequestCancelledError)
    bench.scheduler.complete(batch, bench.answers(batch))
    outcomes = [bench.inbox.of(request).outcome for request in requests]
    assert [isinstance(outcome, Answer) for outcome in outcomes] == [index != position for index in range(4)]


def test_a_request_that_is_cancelled_because_its_deadline_has_passed_counts_as_late() -> None:
    bench = Bench()
    running = bench.submit(deadline_ms=5)
    bench.take()
    bench.clock.advance_ms(5)
    bench.scheduler.cancel(running.ticket)
    assert isinstance(bench.inbox.of(running).outcome, DeadlineExpiredError)


def test_cancelling_twice_or_after_the_answer_changes_nothing() -> None:
    bench = Bench()
    request = bench.submit()
    batch = bench.take()
    bench.scheduler.complete(batch, bench.answers(batch))
    bench.scheduler.cancel(request.ticket)
    bench.scheduler.cancel(request.ticket)
    assert len(bench.inbox.completions) == 1


def test_the_queue_survives_the_loss_of_one_device_but_not_of_the_last() -> None:
    bench = Bench()
    bench.scheduler.add_device("cuda:1")
    queued = bench.submit()
    bench.scheduler.lose_device("cpu", "unspecified launch failure")
    assert not bench.inbox.completions
    bench.scheduler.lose_device("cuda:1", "unspecified launch failure")
    refused = bench.submit()
    for request in (queued, refused):
        outcome = bench.inbox.of(request).outcome
        assert isinstance(outcome, UnavailableError)
        assert "cuda:1: unspecified launch failure" in str(outcome)


def test_while_the_only_device_is_away_requests_wait_if_there_is_time_and_are_told_when_it_is_back_if_not() -> None:
    bench = Bench(cost_ms=10)
    running, batch = bench.submit(), bench.take()
    queued, short = bench.submit(), bench.submit(deadline_ms=500)
    bench.scheduler.lose_device("cpu", "gone", bench.clock() + 1_000_000_000)
    assert bench.scheduler.put_back(batch, DeviceLostError("gone")) == 1
    dropped = bench.inbox.of(short).outcome
    bench.clock.advance_ms(100)
    waiting, refused = bench.submit(deadline_ms=1000), bench.submit(deadline_ms=800)
    refusal = bench.inbox.of(refused).outcome
    for error, least_ms in ((dropped, 1000), (refusal, 100)):
        assert isinstance(error, RestartingError)
        assert error.retry_after_ms is not None
        assert least_ms <= error.retry_after_ms < least_ms + 50
    full = [bench.submit() for _ in range(3)][-1]
    error = bench.inbox.of(full).outcome
    assert isinstance(error, QueueFullError)
    assert error.retry_after_ms is not None
    assert error.retry_after_ms >= 900
    bench.clock.advance_ms(900)
    bench.scheduler.add_device("cpu", {TOY: {1: 10_000_000}})
    again = bench.take()
    assert {running, queued, waiting} <= set(again.requests)


def test_while_a_device_is_overdue_requests_without_the_time_are_refused_at_once_and_told_when_to_come_back() -> None:
    bench = Bench(cost_ms=10)
    bench.scheduler.lose_device("cpu", "gone", bench.clock() + 1_000_000_000)
    bench.clock.advance_ms(1000)
    for late_ms, patience_ms in ((0, 250), (200, 250), (600, 600)):  # a quarter of what was expected, or as long again
        bench.clock.advance_ms(late_ms)
        refused, waiting = bench.submit(deadline_ms=patience_ms), bench.submit(deadline_ms=patience_ms + 20)
        error = bench.inbox.of(refused).outcome
        assert isinstance(error, RestartingError)
        assert error.retry_after_ms is not None
        assert 0 < error.retry_after_ms < 50  # about so much more time it must bring
        assert waiting not in [completion.request for completion in bench.inbox.completions]
        bench.scheduler.cancel(waiting.ticket)
        bench.clock.advance_ms(-late_ms)
    for _ in range(4):
        bench.submit()
    bench.clock.advance_ms(600)
    full = bench.inbox.of(bench.submit()).outcome
    assert isinstance(full, QueueFullError)
    assert full.retry_after_ms is not None
    assert full.retry_after_ms >= 600


def test_what_waits_for_a_device_that_will_not_be_back_is_unavailable() -> None:
    bench = Bench()
    bench.scheduler.lose_device("cpu", "gone", bench.clock() + 1_000_000_000)
    waiting = bench.submit()
    assert not bench.inbox.completions
    bench.scheduler.lose_device("cpu", "it cannot be opened")
    for request in (waiting, bench.submit()):
        outcome = bench.inbox.of(request).outcome
        assert isinstance(outcome, UnavailableError)
        assert "it cannot be opened" in str(outcome)


def test_a_stop_does_not_wait_for_a_device_that_is_away() -> None:
    bench = Bench()
    bench.scheduler.lose_device("cpu", "gone", bench.clock() + 1_000_000_000)
    waiting = bench.submit()
    bench.scheduler.stop()
    assert isinstance(bench.inbox.of(waiting).outcome, UnavailableError)


def test_nobody_counts_on_a_device_that_is_away_while_another_has_the_model() -> None:
    bench = Bench(Limits(1, 10), cost_ms=10)
    bench.scheduler.add_device("cuda:1", {TOY: {1: 10_000_000}})
    bench.scheduler.lose_device("cpu", "gone", bench.clock())
    bench.submit()
    assert bench.scheduler.take("cuda:1") is not None
    bench.submit(deadline_ms=25)
    assert isinstance(bench.inbox.of(bench.submit(deadline_ms=26)).outcome, OverloadedError)


def test_stop_answers_queued_and_running_requests_and_late_outcomes_do_not_count() -> None:
    bench = Bench()
    running = bench.submit()
    batch = bench.take()
    queued = bench.submit()
    bench.scheduler.stop()
    bench.scheduler.complete(batch, bench.answers(batch))
    assert [type(bench.inbox.of(request).outcome) for request in (running, queued)] == [UnavailableError] * 2
    assert isinstance(bench.inbox.of(bench.submit()).outcome, UnavailableError)
    assert bench.scheduler.take("cpu") is None


def test_the_queue_depth_returns_to_zero() -> None:
    bench = Bench()
    for deadline_ms in (None, 5, None, None, None):
        last = bench.submit(deadline_ms=deadline_ms)
    assert bench.scheduler.queue_depths() == {TOY: 4, OTHER: 0}
    assert isinstance(bench.inbox.of(last).outcome, QueueFullError)
    bench.clock.advance_ms(6)
    bench.take()
    assert bench.scheduler.queue_depths() == {TOY: 0, OTHER: 0}


def test_a_waiting_runner_wakes_for_a_request_and_for_the_stop() -> None:
    bench = Bench()
    taken: list[Batch | None] = []
    runner = threading.Thread(target=lambda: taken.extend([bench.scheduler.take("cpu"), bench.scheduler.take("cpu")]))
    runner.start()
    request = bench.submit()
    while not taken and runner.is_alive() and bench.scheduler.queue_depths()[TOY]:
        runner.join(0.001)
    bench.scheduler.stop()
    runner.join(PATIENCE_S)
    assert not runner.is_alive()
    first, second = taken
    assert first is not None
    assert first.requests == (request,)
    assert second is None


def test_the_expiry_thread_answers_on_time_without_a_device_that_asks() -> None:
    inbox = Inbox()
    scheduler = Scheduler()
    scheduler.add_model(TOY, Limits(8, 4))
    scheduler.add_device("cpu")
    scheduler.start()
    try:
        for deadline_ms in (60_000, 30):  # the later deadline first: the thread has to be woken for the earlier one
            now_ns = scheduler._clock()
            deadline_ns = now_ns + deadline_ms * 1_000_000
            scheduler.submit(InferenceRequest(TOY, block_of(make_rows(1.0)), now_ns, deadline_ns, inbox.deliver))
        (completion,) = inbox.wait(1)
        assert isinstance(completion.outcome, DeadlineExpiredError)
        assert completion.finished_ns >= (completion.request.deadline_ns or 0)
    finally:
        scheduler.stop()


def test_the_expiry_thread_outlives_a_deadline_longer_than_any_clock() -> None:
    inbox = Inbox()
    scheduler = Scheduler()
    scheduler.add_model(TOY, Limits(8, 4))
    scheduler.add_device("cpu")
    scheduler.start()
    try:
        now_ns = scheduler._clock()
        scheduler.submit(InferenceRequest(TOY, block_of(make_rows(1.0)), now_ns, now_ns + 2**63 * 1000, inbox.deliver))
        wait_until(lambda: scheduler._sweeper.wakes_ns is not None or not scheduler._sweeper.alive)
        now_ns = scheduler._clock()
        scheduler.submit(InferenceRequest(TOY, block_of(make_rows(1.0)), now_ns, now_ns + 30_000_000, inbox.deliver))
        (completion,) = inbox.wait(1)
        assert isinstance(completion.outcome, DeadlineExpiredError)
    finally:
        scheduler.stop()


def test_a_runner_whose_device_is_busy_is_given_a_full_batch_as_soon_as_there_is_one() -> None:
    bench, taken = Bench(Limits(8, 100)), list[Batch | None]()
    bench.submit()
    running = bench.take()
    ended = threading.Event()
    runner = threading.Thread(target=lambda: taken.append(bench.scheduler.take_ahead("cpu", ended.is_set)))
    runner.start()
    for _ in range(7):
        bench.submit()
    runner.join(0.05)
    assert runner.is_alive(), "seven could still become eight"
    bench.submit()
    runner.join(PATIENCE_S)
    (batch,) = taken
    assert batch is not None
    assert batch.rows == 8
    assert bench.scheduler.take_ahead("cpu", lambda: True) is None
    runner = threading.Thread(target=lambda: taken.append(bench.scheduler.take_ahead("cpu", ended.is_set)))
    runner.start()
    ended.set()
    bench.scheduler.wake("cpu")
    runner.join(PATIENCE_S)
    assert taken == [batch, None]
    bench.scheduler.complete(running, bench.answers(running))


class Runners:
    """Threads that wait for batches of so many devices, and note who looked, and what each was given."""

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench = bench
        self.given: queue.SimpleQueue[tuple[str, Batch | None]] = queue.SimpleQueue()
        self.interrupted: set[str] = set()
        self.looked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        for name in [f"gpu{number}" for number in range(count)]:
            bench.scheduler.add_device(name)
            self.threads.append(threading.Thread(target=self._run, args=(name,), daemon=True))
            self.threads[-1].start()
            assert self.looked.get(timeout=PATIENCE_S) == name, "one after the other: the first has waited longest"
            wait_until(partial(bench.scheduler._idle._waiting.__contains__, name))

    def join(self) -> None:
        for thread in self.threads:
            thread.join(PATIENCE_S)

    def _run(self, name: str) -> None:
        self.given.put((name, self.bench.scheduler.take(name, lambda: self._look(name))))

    def _look(self, name: str) -> bool:
        self.looked.put(name)
        return name in self.interrupted


def test_what_one_runner_is_to_find_out_wakes_no_other() -> None:
    bench = Bench()
    runners = Runners(bench, 3)
    runners.interrupted.add("gpu1")
    bench.scheduler.wake("gpu1")
    assert runners.given.get(timeout=PATIENCE_S) == ("gpu1", None)
    bench.submit()
    name, batch = runners.given.get(timeout=PATIENCE_S)
    assert (name, batch is None) == ("gpu0", False)
    bench.scheduler.stop()
    runners.join()
    assert [runners.looked.get() for _ in range(runners.looked.qsize())] == ["gpu1", "gpu0"]


def test_a_runner_that_has_something_else_to_do_leaves_a_request_to_the_next() -> None:
    bench = Bench()
    runners = Runners(bench, 2)
    runners.interrupted.add("gpu0")  # it has waited longest, so it is woken for the request
    bench.submit()
    given = dict(runners.given.get(timeout=PATIENCE_S) for _ in range(2))
    assert given["gpu0"] is None
    assert given["gpu1"] is not None


def test_of_busy_devices_the_one_that_is_free_first_is_given_the_next_full_batch() -> None:
    bench, given = Bench(Limits(8, 100)), queue.SimpleQueue[tuple[str, Batch | None]]()
    for name, cost_ms in (("slow", 100), ("quick", 10)):
        bench.scheduler.add_device(name, {model: {8: cost_ms * 1_000_000} for model in (TOY, OTHER)})
        for _ in range(8):
            bench.submit()
        assert bench.scheduler.take(name) is not None

    def wait_as(name: str) -> None:
        given.put((name, bench.scheduler.take_ahead(name, lambda: False)))

    for name in ("slow", "quick"):  # which has waited longest is no matter
        threading.Thread(target=wait_as, args=(name,), daemon=True).start()
        wait_until(partial(bench.scheduler._busy._waiting.__contains__, name))
    for _ in range(8):
        bench.submit()
    name, batch = given.get(timeout=PATIENCE_S)
    assert (name, batch is None) == ("quick", False)
    bench.scheduler.stop()
    assert given.get(timeout=PATIENCE_S) == ("slow", None)
