"""What is known of requests that were not read, on a clock that is set by hand."""

from __future__ import annotations

import random

import pytest
from dnnserve.envelope import ModelKey
from dnnserve.scheduling.admission import Rejection
from dnnserve.scheduling.dispatcher import Dispatcher
from dnnserve.scheduling.entry import Entry, Limits
from dnnserve.scheduling.outlook import Outlook

MS = 1_000_000
NOW = 1_000 * MS
MODEL = ModelKey("toy", 1)


@pytest.fixture
def outlook() -> Outlook:
    return Outlook()


def test_nothing_is_said_before_anything_was_refused(outlook: Outlook) -> None:
    assert outlook.late_ns(NOW, NOW + 1) is None
    assert not outlook.is_gloomy(NOW)


@pytest.mark.parametrize(
    ("deadline_ms", "late_ms"), [(39.9, None), (40, 30), (55, 15), (69.5, 0.5), (70, None), (100, None)], ids=str
)
def test_who_comes_behind_a_refused_request_and_cannot_wait_until_its_answer_is_late(
    outlook: Outlook, deadline_ms: float, late_ms: float | None
) -> None:
    outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS)
    late_ns = outlook.late_ns(NOW + MS, NOW + int(deadline_ms * MS))
    assert late_ns == (None if late_ms is None else int(late_ms * MS))


@pytest.mark.parametrize(("left_ms", "holds_ms"), [(400, 25), (100, 25), (40, 10), (20, 5), (4, 5)], ids=str)
def test_a_refusal_holds_for_a_quarter_of_the_time_that_was_left_which_is_five_to_twenty_five_milliseconds(
    outlook: Outlook, left_ms: int, holds_ms: int
) -> None:
    outlook.hear(NOW, NOW + left_ms * MS, NOW + 1_000 * MS)
    last_ns = NOW + holds_ms * MS - 1
    assert outlook.late_ns(last_ns, NOW + 500 * MS) == 500 * MS
    assert outlook.is_gloomy(last_ns)
    assert outlook.late_ns(last_ns + 1, NOW + 500 * MS) is None
    assert not outlook.is_gloomy(last_ns + 1)


def test_refusals_of_different_deadlines_count_beside_each_other(outlook: Outlook) -> None:
    for deadline_ms in (15, 50, 100):
        outlook.hear(NOW, NOW + deadline_ms * MS, NOW + (deadline_ms + 5) * MS)
    asked = {ms: outlook.late_ns(NOW, NOW + ms * MS) for ms in (14, 17, 30, 52, 101, 106)}
    assert asked == {14: None, 17: 3 * MS, 30: None, 52: 3 * MS, 101: 4 * MS, 106: None}


@pytest.mark.parametrize(("refused", "late"), [(1, (1, 2, 3)), (2, (2, 3)), (3, (3,))])
def test_a_refusal_says_nothing_of_more_important_requests(
    outlook: Outlook, refused: int, late: tuple[int, ...]
) -> None:
    outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS, refused)
    assert tuple(level for level in (1, 2, 3) if outlook.late_ns(NOW, NOW + 50 * MS, level) is not None) == late


def test_of_many_refusals_the_newest_count(outlook: Outlook) -> None:
    for number in range(30):
        outlook.hear(NOW, NOW + (100 + 10 * number) * MS, NOW + (105 + 10 * number) * MS)
    assert outlook.late_ns(NOW, NOW + 101 * MS) is None
    assert outlook.late_ns(NOW, NOW + 391 * MS) == 4 * MS


def test_what_a_device_cannot_do_in_time_whatever_else_it_has_is_late_for_a_while(outlook: Outlook) -> None:
    outlook.hear_least(NOW, 6 * MS)
    assert outlook.late_ns(NOW + 99 * MS, NOW + 105 * MS) == 0
    assert outlook.late_ns(NOW + 99 * MS, NOW + 102 * MS) == 3 * MS
    assert outlook.late_ns(NOW + 99 * MS, NOW + 106 * MS) is None
    assert outlook.late_ns(NOW + 100 * MS, NOW + 101 * MS) is None
    assert not outlook.is_gloomy(NOW), "others do not wait"


def test_for_a_minute_after_a_request_that_takes_its_turn_by_something_else_nothing_is_said(outlook: Outlook) -> None:
    outlook.hear(NOW, NOW + 100 * MS, NOW + 200 * MS)
    outlook.hear_least(NOW, 200 * MS)
    outlook.distrust(NOW)
    minute_ns = 60_000 * MS
    for now_ns in (NOW, NOW + minute_ns - 1):
        outlook.hear(now_ns, now_ns + 100 * MS, now_ns + 200 * MS)
        outlook.hear_least(now_ns, 200 * MS)
        assert outlook.late_ns(now_ns, now_ns + 150 * MS) is None
        assert not outlook.is_gloomy(now_ns)
    outlook.hear(NOW + minute_ns, NOW + minute_ns + 100 * MS, NOW + minute_ns + 200 * MS)
    assert outlook.late_ns(NOW + minute_ns, NOW + minute_ns + 150 * MS) == 50 * MS


def saturated(generator: random.Random) -> Dispatcher:
    """Batches of 4 that take 4 ms, and as many requests as are let in with deadlines of 5 to 60 ms."""
    dispatcher = Dispatcher()
    dispatcher.add_model(MODEL, Limits(4, 1_000), NOW)
    dispatcher.add_device("d", {MODEL: dict.fromkeys((1, 2, 3, 4), 4 * MS)}, NOW)
    for ticket in range(200):
        dispatcher.submit(MODEL, Entry.of(ticket, 1, NOW, NOW + generator.randint(5 * MS, 60 * MS)), NOW)
    return dispatcher


def test_the_scheduler_would_refuse_as_well_what_is_refused_by_what_it_said() -> None:
    generator, compared = random.Random(0), 0
    for _ in range(300):
        dispatcher, outlook = saturated(generator), Outlook()
        deadline_ns = NOW + generator.randint(5 * MS, 60 * MS)
        refusal = dispatcher.submit(MODEL, Entry.of(1_000, 1, NOW, deadline_ns), NOW)
        if refusal is None or refusal.reason is not Rejection.OVERLOADED:
            continue
        outlook.hear(NOW, deadline_ns, deadline_ns + refusal.retry_after_ns)
        later_ns = deadline_ns + generator.randint(0, 4 * MS)
        if outlook.late_ns(NOW, later_ns) is not None:
            compared += 1
            assert dispatcher.submit(MODEL, Entry.of(1_001, 1, NOW, later_ns), NOW) is not None
    assert compared > 50


def test_levels_count_as_they_do_in_the_queue() -> None:
    generator, compared = random.Random(1), 0
    for _ in range(300):
        dispatcher, outlook = saturated(generator), Outlook()
        deadline_ns, level = NOW + generator.randint(5 * MS, 60 * MS), generator.randint(1, 3)
        refusal = dispatcher.submit(MODEL, Entry.of(1_000, 1, NOW, deadline_ns, level), NOW)
        if refusal is None or refusal.reason is not Rejection.OVERLOADED:
            continue
        outlook.hear(NOW, deadline_ns, deadline_ns + refusal.retry_after_ns, level)
        later_ns, other = deadline_ns + generator.randint(0, 4 * MS), generator.randint(1, 3)
        if outlook.late_ns(NOW, later_ns, other) is not None:
            compared += 1
            assert dispatcher.submit(MODEL, Entry.of(1_001, 1, NOW, later_ns, other), NOW) is not None
    assert compared > 50


def test_what_became_of_a_request_counts_only_where_none_had_fewer_rows_for_a_minute(outlook: Outlook) -> None:
    outlook.see(NOW, 8)
    assert outlook.is_least(8)
    outlook.see(NOW, 2)
    outlook.see(NOW + MS, 8)
    assert (outlook.is_least(8), outlook.is_least(2)) == (False, True)
    outlook.see(NOW + 60_000 * MS, 8)
    assert outlook.is_least(8)


def test_what_is_out_of_reach_is_told_from_what_waits_for_others(outlook: Outlook) -> None:
    outlook.hear_least(NOW, 6 * MS)
    outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS)
    assert [outlook.is_unreachable(NOW, NOW + ms * MS) for ms in (5, 6, 7, 50)] == [True, True, False, False]
    assert not outlook.is_unreachable(NOW + 100 * MS, NOW + 105 * MS)
