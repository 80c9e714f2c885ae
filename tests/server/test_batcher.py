from __future__ import annotations

import pytest
from dnnserve.batcher import Batcher, Decision, Entry, Limits, Rejection

MS = 1_000_000


def entry(ticket: int, rows: int = 1, arrival: int = 0, deadline: int | None = None) -> Entry:
    return Entry(ticket, rows, arrival, deadline)


def filled(limits: Limits, *entries: Entry) -> Batcher:
    batcher = Batcher(limits)
    for item in entries:
        assert batcher.submit(item, item.arrival_ns) is None
    return batcher


def tickets(entries: tuple[Entry, ...]) -> list[int]:
    return [item.ticket for item in entries]


def test_an_idle_device_takes_a_single_request_at_once() -> None:
    batcher = filled(Limits(8, 10), entry(1))
    assert batcher.take(0) == Decision((entry(1),), ())
    assert batcher.take(0) == Decision()


def test_a_batch_counts_rows_not_requests() -> None:
    batcher = filled(Limits(8, 10), entry(1, 3), entry(2, 4), entry(3, 1), entry(4, 1))
    assert tickets(batcher.take(0).batch) == [1, 2, 3]
    assert tickets(batcher.take(0).batch) == [4]


def test_a_request_that_does_not_fit_is_not_overtaken() -> None:
    batcher = filled(Limits(8, 10), entry(1, 5), entry(2, 5), entry(3, 1))
    assert tickets(batcher.take(0).batch) == [1]
    assert tickets(batcher.take(0).batch) == [2, 3]


def test_more_rows_than_a_batch_holds_are_rejected() -> None:
    batcher = Batcher(Limits(8, 10))
    assert batcher.submit(entry(1, 9), 0) is Rejection.TOO_MANY_ROWS
    assert batcher.submit(entry(2, 8), 0) is None


def test_a_full_queue_rejects_until_something_leaves() -> None:
    batcher = filled(Limits(8, 2), entry(1), entry(2))
    assert batcher.submit(entry(3), 0) is Rejection.QUEUE_FULL
    assert batcher.cancel(1) == entry(1)
    assert batcher.submit(entry(4), 0) is None


def test_a_deadline_that_has_passed_is_rejected_and_the_moment_itself_counts_as_passed() -> None:
    batcher = Batcher(Limits(8, 10))
    assert batcher.submit(entry(1, deadline=5), 5) is Rejection.DEADLINE_PASSED
    assert batcher.submit(entry(2, deadline=6), 5) is None


def test_an_expired_request_leaves_without_a_batch_and_its_neighbours_run() -> None:
    batcher = filled(Limits(8, 10), entry(1), entry(2, deadline=5), entry(3))
    decision = batcher.take(5)
    assert (tickets(decision.batch), tickets(decision.expired)) == ([1, 3], [2])


def test_expiry_follows_deadlines_not_the_queue() -> None:
    batcher = filled(Limits(8, 10), entry(1, deadline=30), entry(2, deadline=10), entry(3, deadline=20))
    assert batcher.next_expiry_ns() == 10
    assert tickets(batcher.expire(20)) == [2, 3]
    assert batcher.next_expiry_ns() == 30


def test_a_cancelled_request_never_runs_and_a_second_cancel_finds_nothing() -> None:
    batcher = filled(Limits(8, 10), entry(1, deadline=9), entry(2))
    assert batcher.cancel(1) == entry(1, deadline=9)
    assert batcher.cancel(1) is None
    assert batcher.next_expiry_ns() is None
    assert tickets(batcher.take(0).batch) == [2]
    assert batcher.cancel(2) is None


def test_a_delay_that_was_asked_for_ends_with_the_oldest_request() -> None:
    batcher = filled(Limits(8, 10, max_queue_delay_ns=5 * MS), entry(1, arrival=0), entry(2, arrival=4 * MS))
    assert batcher.take(4 * MS) == Decision()
    assert batcher.next_take_ns(4 * MS) == 5 * MS
    assert tickets(batcher.take(5 * MS).batch) == [1, 2]


@pytest.mark.parametrize("rows", [(4, 4), (5, 4)], ids=["exactly full", "the next does not fit"])
def test_a_full_batch_does_not_wait_out_the_delay(rows: tuple[int, ...]) -> None:
    batcher = filled(Limits(8, 10, max_queue_delay_ns=5 * MS), *(entry(i, n) for i, n in enumerate(rows)))
    assert batcher.next_take_ns(0) == 0
    assert tickets(batcher.take(0).batch)[0] == 0


def test_a_delay_never_outlasts_a_deadline() -> None:
    batcher = filled(Limits(8, 10, max_queue_delay_ns=5 * MS), entry(1, deadline=3 * MS))
    assert tickets(batcher.take(0).batch) == [1]


def test_a_drained_queue_waits_for_nobody() -> None:
    batcher = filled(Limits(8, 10, max_queue_delay_ns=5 * MS, hold_until_requests=4), entry(1))
    assert batcher.take(0) == Decision()
    batcher.drain()
    assert tickets(batcher.take(0).batch) == [1]


def test_a_hold_ends_once_enough_requests_wait_and_does_not_come_back() -> None:
    batcher = filled(Limits(8, 10, hold_until_requests=3), entry(1), entry(2))
    assert batcher.take(10 * MS) == Decision()
    assert batcher.next_take_ns(10 * MS) is None
    batcher.submit(entry(3), 0)
    assert tickets(batcher.take(0).batch) == [1, 2, 3]
    batcher.submit(entry(4), 0)
    assert tickets(batcher.take(0).batch) == [4]


def test_held_requests_expire_all_the_same() -> None:
    batcher = filled(Limits(8, 10, hold_until_requests=3), entry(1, deadline=5), entry(2))
    assert tickets(batcher.take(5).expired) == [1]


def test_with_a_cost_what_cannot_finish_in_time_is_dropped_and_the_rest_fills_the_batch() -> None:
    batcher = Batcher(Limits(2, 10), batch_cost_ns=lambda rows: rows * 10)
    for ticket, deadline in enumerate((20, 21, 50, 50)):
        assert batcher.submit(entry(ticket, deadline=deadline), 0) is None
    decision = batcher.take(1)  # a full batch ends at 21
    assert (tickets(decision.expired), tickets(decision.batch)) == ([0, 1], [2, 3])


def test_with_a_cost_a_short_queue_is_judged_by_its_own_batch() -> None:
    batcher = Batcher(Limits(8, 10), batch_cost_ns=lambda rows: rows * 10)
    batcher.submit(entry(1, deadline=11), 0)
    assert batcher.next_expiry_ns() == 1
    assert tickets(batcher.take(0).batch) == [1]


def test_a_lost_devices_batch_comes_back_to_the_head_of_a_full_queue() -> None:
    batcher = filled(Limits(2, 3), entry(1), entry(2), entry(3))
    taken = batcher.take(0).batch
    for ticket in (4, 5):
        batcher.submit(entry(ticket), 0)
    batcher.put_back(taken)
    assert [tickets(batcher.take(0).batch) for _ in range(3)] == [[1, 2], [3, 4], [5]]


def test_what_comes_back_too_late_expires() -> None:
    batcher = filled(Limits(2, 3), entry(1, deadline=5), entry(2, deadline=50))
    taken = batcher.take(0).batch
    batcher.put_back(taken)
    decision = batcher.take(10)
    assert (tickets(decision.expired), tickets(decision.batch)) == ([1], [2])


def test_abandon_empties_the_queue_in_order() -> None:
    batcher = filled(Limits(8, 10), entry(1, deadline=5), entry(2))
    assert tickets(batcher.abandon()) == [1, 2]
    assert (len(batcher), batcher.rows, batcher.next_expiry_ns()) == (0, 0, None)


def test_a_hundred_thousand_cancelled_requests_leave_nothing_behind() -> None:
    batcher = Batcher(Limits(8, 10))
    for ticket in range(100_000):
        assert batcher.submit(entry(ticket, deadline=10**12 - ticket), 0) is None
        assert batcher.cancel(ticket) is not None
    assert (len(batcher), batcher.rows, batcher.next_expiry_ns()) == (0, 0, None)
    assert len(batcher._deadlines) < 100


@pytest.mark.parametrize(
    "values", [(0, 1), (1, 0), (1, 1, -1), (1, 1, 0, 2)], ids=["rows", "queue", "delay", "hold above queue"]
)
def test_limits_that_cannot_work_are_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=str(values[-1])):
        Limits(*values)
