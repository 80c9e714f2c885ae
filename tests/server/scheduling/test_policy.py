"""The choices themselves, case by case: a dispatcher, and a clock that is set by hand. Milliseconds throughout."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from dnnserve.envelope import ModelKey
from dnnserve.scheduling.admission import Refusal, Rejection
from dnnserve.scheduling.dispatcher import Dispatcher
from dnnserve.scheduling.entry import LAST_PRIORITY, PATIENCE_NS, Entry, Limits
from dnnserve.scheduling.policy import Decision

MS = 1_000_000
TOY, OTHER = ModelKey("toy", 1), ModelKey("other", 1)


class Bench:
    """`costs` is what batches take at warm-up, by rows: exact, but for the margin of 12 % that a new cost has."""

    def __init__(
        self, limits: Limits | None = None, costs: Mapping[int, int] | None = None, devices: str = "a"
    ) -> None:
        self.dispatcher = Dispatcher()
        self.tickets = 0
        for device in devices:
            timings = {rows: ms * MS for rows, ms in (costs or {}).items()}
            self.dispatcher.add_device(device, {TOY: timings, OTHER: timings}, 0)
        for model in (TOY, OTHER):
            self.dispatcher.add_model(model, limits or Limits(8, 100), 0)

    def submit(
        self, now: float = 0, due: float | None = None, rows: int = 1, priority: int = 0, model: ModelKey = TOY
    ) -> Refusal | None:
        self.tickets += 1
        deadline_ns = None if due is None else int(due * MS)
        entry = Entry.of(self.tickets, rows, int(now * MS), deadline_ns, priority)
        return self.dispatcher.submit(model, entry, int(now * MS))

    def fill(self, count: int, now: float = 0, due: float | None = None, rows: int = 1, model: ModelKey = TOY) -> None:
        for _ in range(count):
            assert self.submit(now, due, rows, model=model) is None

    def take(self, now: float = 0, device: str = "a") -> Decision:
        return self.dispatcher.take(device, int(now * MS))

    def run(self, now: float = 0, device: str = "a", took: float = 0) -> list[int]:
        """Tickets of the batch that is taken, and ended after `took`."""
        decision = self.take(now, device)
        if decision.batch:
            self.dispatcher.complete(device, decision, int((now + took) * MS))
        return tickets(decision)


def tickets(decision: Decision) -> list[int]:
    return [entry.ticket for entry in decision.batch]


def dropped(decision: Decision) -> list[int]:
    return [entry.ticket for drop in decision.dropped for entry in drop.entries]


def test_an_idle_device_takes_a_single_request_at_once() -> None:
    bench = Bench()
    bench.fill(1)
    assert bench.run() == [1]
    assert bench.take() == Decision(0, None, [], 0, 0, (), None, False)


def test_a_batch_counts_rows_and_what_does_not_fit_waits_for_the_next_while_others_fill_it() -> None:
    bench = Bench()
    for rows in (5, 5, 1, 3):
        bench.fill(1, rows=rows)
    assert [bench.run(), bench.run()] == [[1, 3], [2, 4]]


def test_requests_go_in_the_order_of_deadlines_and_those_without_one_behind_them() -> None:
    bench = Bench(Limits(1, 10))
    for due in (None, 300, 100, 200):
        bench.submit(due=due)
    assert [bench.run() for _ in range(4)] == [[3], [4], [2], [1]]


def test_a_request_without_a_deadline_stands_in_front_once_its_patience_has_ended() -> None:
    bench = Bench(Limits(1, 10))
    bench.submit()
    late = PATIENCE_NS / MS
    bench.submit(now=late - 40, due=late + 10)
    bench.submit(now=late - 40, due=late - 10)
    assert [bench.run(late - 40) for _ in range(3)] == [[3], [1], [2]]


def test_neither_those_with_a_deadline_nor_those_without_hold_up_the_others() -> None:
    bench = Bench(Limits(4, 100))
    bench.fill(10)
    now = 2 * PATIENCE_NS / MS
    bench.fill(10, now, now + 50)
    assert [sorted(bench.run(now)) for _ in range(2)] == [[1, 2, 11, 12], [3, 4, 13, 14]]


def test_a_less_important_request_is_overtaken_until_it_is_old_enough() -> None:
    bench = Bench(Limits(1, 100))
    step = PATIENCE_NS / MS
    bench.submit(0, priority=3)
    for now in (0, 0.4 * step, 0.8 * step, 1.2 * step):
        bench.submit(now)
    bench.submit(1.2 * step, priority=1)
    assert [bench.run(1.2 * step) for _ in range(6)] == [[2], [6], [3], [4], [1], [5]]


def test_no_level_is_so_unimportant_that_it_waits_for_ever() -> None:
    bench = Bench(Limits(1, 100))
    bench.submit(0, priority=2**63)
    now = LAST_PRIORITY * PATIENCE_NS / MS
    bench.submit(now)
    assert bench.run(now) == [1]


def test_under_overload_those_too_late_for_a_full_batch_make_way_for_others() -> None:
    bench = Bench(Limits(2, 10))
    bench.fill(2, due=25)
    bench.fill(2, due=50)
    bench.dispatcher.costs.seed("a", TOY, 2, {1: 15 * MS, 2: 20 * MS}, 0)
    decision = bench.take(5)
    assert (tickets(decision), dropped(decision)) == ([3, 4], [1, 2])


def test_without_enough_others_a_smaller_batch_rescues_them_if_it_answers_more_rows_a_second() -> None:
    costs = {1: 2, 2: 4, 4: 8, 8: 16}
    bench = Bench(costs=costs)
    bench.fill(2, due=10)
    bench.fill(6, due=100)
    decision = bench.take(2)
    assert (tickets(decision), dropped(decision)) == ([1, 2, 3, 4, 5, 6][: decision.rows], [])
    assert decision.rows < 8


def test_a_request_whose_rows_fit_only_a_batch_that_is_too_late_is_dropped() -> None:
    bench = Bench(costs={1: 2, 8: 16})
    bench.fill(1, due=20, rows=8)
    decision = bench.take(10)
    assert (tickets(decision), dropped(decision)) == ([], [1])


def test_a_request_that_another_device_can_still_answer_is_left_to_it() -> None:
    bench = Bench(devices="ab")
    bench.dispatcher.costs.seed("a", TOY, 8, {1: 100 * MS}, 0)
    bench.dispatcher.costs.seed("b", TOY, 8, {1: 10 * MS}, 0)
    bench.fill(1, due=50)
    decision = bench.take(device="a")
    assert (tickets(decision), dropped(decision), decision.others_should_look) == ([], [], True)
    assert tickets(bench.take(device="b")) == [1]


def test_models_are_given_the_same_time_whatever_their_batches_take() -> None:
    bench = Bench(Limits(1, 100), costs={1: 10})
    bench.dispatcher.costs.seed("a", OTHER, 1, {1: 30 * MS}, 0)
    bench.fill(30)
    bench.fill(30, model=OTHER)
    now, given = 0, {TOY: 0, OTHER: 0}
    while now < 600:
        decision = bench.take(now)
        assert decision.model is not None
        took = 10 if decision.model == TOY else 30
        now += took
        given[decision.model] += took
        bench.dispatcher.complete("a", decision, now * MS)
        assert abs(given[TOY] - given[OTHER]) <= 30
    assert len(bench.dispatcher) < 30


def test_a_model_that_asked_for_nothing_for_long_gets_its_turn_next_but_no_more_than_that() -> None:
    bench = Bench(Limits(1, 100), costs={1: 10})
    bench.fill(50)
    for now in range(0, 200, 10):
        bench.run(now, took=10)
    bench.fill(5, 200, model=OTHER)
    models = []
    for now in range(200, 260, 10):
        decision = bench.take(now)
        models.append(decision.model)
        bench.dispatcher.complete("a", decision, (now + 10) * MS)
    assert models.count(OTHER) == 3
    assert OTHER in models[:2]


def test_a_busy_device_is_given_the_next_batch_if_it_is_full_and_in_time_when_its_turn_comes() -> None:
    bench = Bench(Limits(2, 10), costs={1: 10, 2: 10})
    bench.fill(2)
    first = bench.take()
    bench.fill(1, due=21.5)
    bench.fill(1)
    ahead = bench.dispatcher.take("a", 12 * MS, ahead=True)
    assert (tickets(ahead), dropped(ahead)) == ([], [])  # until 23.2: too late for one, and not full without it
    bench.fill(1)
    second = bench.dispatcher.take("a", 12 * MS, ahead=True)
    assert tickets(second) == [4, 5]
    bench.dispatcher.complete("a", first, 13 * MS)
    assert bench.dispatcher.complete("a", second, 25 * MS) == 12 * MS, "it waited for the first until 13"


def test_what_a_lost_device_ran_goes_first_elsewhere() -> None:
    bench = Bench(Limits(2, 3), devices="ab")
    bench.fill(2)
    taken = bench.take()
    bench.submit(due=30)
    bench.dispatcher.lose_device("a", 0)
    bench.dispatcher.put_back(TOY, taken.batch)
    assert [bench.run(device="b"), bench.run(device="b")] == [[1, 2], [3]]


def test_a_delay_that_was_asked_for_ends_with_the_oldest_request_a_full_batch_or_a_deadline() -> None:
    bench = Bench(Limits(8, 10, max_queue_delay_ns=5 * MS))
    bench.fill(1)
    bench.fill(1, 4)
    assert bench.take(4).look_again_ns == 5 * MS
    assert bench.run(5) == [1, 2]
    bench.fill(2, 6, rows=4)
    assert bench.run(6) == [3, 4]
    bench.fill(1, 10, due=13)
    assert bench.run(10) == [5]


def test_a_hold_ends_once_enough_requests_wait_and_does_not_come_back() -> None:
    bench = Bench(Limits(8, 10, hold_until_requests=3))
    bench.fill(2)
    assert bench.take(9) == Decision(9 * MS, None, [], 0, 0, (), None, False)
    bench.fill(1)
    assert bench.run() == [1, 2, 3]
    bench.fill(1)
    assert bench.run() == [4]


def test_a_drained_queue_waits_for_nobody() -> None:
    bench = Bench(Limits(8, 10, max_queue_delay_ns=5 * MS, hold_until_requests=4))
    bench.fill(1)
    bench.dispatcher.drain()
    assert bench.run() == [1]


def test_what_no_device_can_answer_in_time_expires_held_or_not_the_earliest_first() -> None:
    bench = Bench(Limits(8, 10, hold_until_requests=9), costs={1: 10})
    for due in (None, 60, 40, 50):
        bench.submit(due=due)
    expiry_ns = bench.dispatcher.next_expiry_ns()
    assert expiry_ns == pytest.approx(40 * MS - 11.2 * MS)
    assert [entry.ticket for entry in bench.dispatcher.expire(39 * MS)] == [3, 4]


def test_a_hundred_thousand_cancelled_requests_leave_nothing_behind() -> None:
    bench = Bench()
    for ticket in range(1, 100_001):
        bench.submit(due=10**9 - ticket)
        bench.dispatcher.cancel(TOY, ticket)
    assert len(bench.dispatcher) == 0
    assert bench.dispatcher.next_expiry_ns() is None
    assert len(bench.dispatcher._queues[TOY]._deadlines) < 100


def reason(refusal: Refusal | None) -> Rejection | None:
    return None if refusal is None else refusal.reason


def test_what_cannot_be_queued_is_refused() -> None:
    bench = Bench(Limits(8, 2))
    assert reason(bench.submit(rows=9)) is Rejection.TOO_MANY_ROWS
    assert reason(bench.submit(now=5, due=5)) is Rejection.DEADLINE_PASSED
    bench.fill(2)
    assert reason(bench.submit()) is Rejection.QUEUE_FULL


def test_a_deadline_that_not_even_an_idle_device_meets_is_refused_and_fewer_rows_are_not() -> None:
    bench = Bench(costs={1: 5, 8: 20})
    assert reason(bench.submit(due=15, rows=8)) is Rejection.UNREACHABLE
    assert bench.submit(due=15) is None


def test_a_request_is_refused_when_those_before_it_take_too_long_and_told_when_to_come_back() -> None:
    bench = Bench(Limits(1, 100), costs={1: 10})
    bench.fill(1)
    bench.take()
    bench.fill(2, due=45)
    assert bench.submit(due=39) is None  # before them
    refusal = bench.submit(due=46)  # three go before: it would be answered at 10 + 30 + 11.2
    assert refusal == Refusal(Rejection.OVERLOADED, 51_200_000, 5_200_000, ("a", 1))


def test_those_that_a_batch_overdue_has_made_too_late_do_not_count_for_who_comes() -> None:
    bench = Bench(Limits(2, 100), costs={2: 10})
    bench.fill(2)
    bench.take()
    bench.fill(2, due=22)
    assert bench.submit(now=15, due=30) is None  # not behind them: the device is free at 15 at the earliest
    assert reason(bench.submit(now=5, due=30)) is Rejection.OVERLOADED


def test_two_devices_halve_the_wait() -> None:
    verdicts = []
    for devices in ("a", "ab"):
        bench = Bench(Limits(1, 100), costs={1: 10}, devices=devices)
        for device in devices:
            bench.fill(1)
            bench.take(device=device)
        bench.fill(4, due=100)
        verdicts.append(reason(bench.submit(due=101)))
        bench.fill(4, due=102)
        verdicts.append(reason(bench.submit(due=103)))
    assert verdicts == [None, Rejection.OVERLOADED, None, None]


def test_a_busy_neighbour_counts_with_its_share_and_no_more() -> None:
    bench = Bench(Limits(1, 1000), costs={1: 10})
    bench.fill(1, model=OTHER)
    bench.take()
    bench.fill(500, model=OTHER)
    assert bench.submit(due=25) is None  # after the batch that runs: the neighbour has had its turn
    assert bench.submit(due=35) is None  # and one more: then both have been given as much
    assert reason(bench.submit(due=45)) is Rejection.OVERLOADED  # one of the neighbour's goes before
    assert bench.submit(due=55) is None
