"""Which calls are turned away unread, on a clock that is set by hand."""

from __future__ import annotations

from typing import NamedTuple

import grpc
import pytest
from dnnserve.errors import DeadlineExpiredError, OverloadedError, RequestError, RestartingError, UnreachableError
from dnnserve.front.door import Door, Verdict
from dnnserve.scheduling.entry import level_of
from dnnserve.scheduling.outlook import Outlook

MS = 1_000_000
NOW = 1_000 * MS
INFER = "ModelInfer"
EXPIRED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


class Call(NamedTuple):
    """One that waits."""

    arrival_ns: int
    deadline_ns: int | None
    method: str = INFER


class Bench:
    """A door and who was told what."""

    def __init__(self) -> None:
        self.told: list[tuple[str, type[RequestError], int]] = []
        self.each_is_told = False
        self.outlook = Outlook()
        self.door = Door(self.outlook, lambda: self.each_is_told, self._on_turned_away)
        self.door.judges = True

    def _on_turned_away(self, method: str, error: RequestError, count: int) -> None:
        self.told.append((method, type(error), count))

    def verdict(self, left_ms: float, now_ns: int = NOW) -> Verdict | None:
        return self.door.verdict(INFER, now_ns, now_ns + int(left_ms * MS))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_calls_are_let_in_while_nothing_is_known(bench: Bench) -> None:
    assert bench.verdict(0.1) is None
    assert bench.door.verdict(INFER, NOW, None) is None
    assert not bench.door.holds
    bench.door.flush()
    assert bench.told == []


def test_a_deadline_that_has_passed_is_said_to_have(bench: Bench) -> None:
    verdict = bench.verdict(-1)
    assert verdict is not None
    assert (verdict.code, verdict.trailers) == (EXPIRED, ())
    assert b"the deadline passed before" in verdict.text


def test_what_would_be_late_is_told_how_much_and_when_to_come_again(bench: Bench) -> None:
    bench.outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS)
    verdict = bench.verdict(55)
    assert verdict is not None
    assert (verdict.code, verdict.trailers) == (EXHAUSTED, (("grpc-retry-pushback-ms", "15"),))
    assert b"longer than the 55.0 ms" in verdict.text
    assert b"retry after 15 ms" in verdict.text
    nearly = bench.verdict(69.9)
    assert nearly is not None
    assert nearly.trailers == (("grpc-retry-pushback-ms", "1"),)
    assert bench.verdict(70) is None
    assert bench.door.verdict(INFER, NOW, None) is None


def test_where_a_request_may_be_for_several_models_only_what_has_passed_is_turned_away(bench: Bench) -> None:
    bench.outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS)
    bench.door.judges = False
    assert bench.verdict(55) is None
    assert bench.verdict(0) is not None


def test_where_somebody_is_told_of_each_call_all_are_read(bench: Bench) -> None:
    bench.outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS)
    bench.each_is_told = True
    assert bench.verdict(55) is None
    assert bench.verdict(-1) is None
    assert bench.door.gives_up(Call(NOW - 90 * MS, NOW + MS), NOW) is None
    assert not bench.door.holds


def test_those_that_are_turned_away_are_counted_together(bench: Bench) -> None:
    bench.outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS)
    for left_ms in (55, 56, -1):
        bench.verdict(left_ms)
    assert bench.door.holds
    assert bench.told == []
    bench.door.flush()
    assert bench.told == [(INFER, OverloadedError, 2), (INFER, DeadlineExpiredError, 1)]
    assert not bench.door.holds
    bench.door.flush()
    assert len(bench.told) == 2


def test_many_are_told_of_at_once(bench: Bench) -> None:
    for _ in range(300):
        bench.verdict(-1)
    assert bench.told == [(INFER, DeadlineExpiredError, 256)]


def test_what_is_left_counts_from_when_the_request_would_be_read(bench: Bench) -> None:
    bench.door.read(NOW - 20 * MS, NOW)
    assert bench.door.lags(NOW)
    assert bench.verdict(20) is not None
    assert bench.verdict(20.1) is None
    later_ns = NOW + 10 * MS  # nothing was read meanwhile
    assert not bench.door.lags(later_ns)
    assert bench.verdict(1, later_ns) is None


def test_requests_whose_bytes_come_slowly_do_not_make_the_reader_late(bench: Bench) -> None:
    for took_ms in (300, 500, 0.2, 400):
        bench.door.read(NOW - int(took_ms * MS), NOW)
    assert not bench.door.lags(NOW)
    assert bench.verdict(1) is None
    for _ in range(8):
        bench.door.read(NOW - 5 * MS, NOW)
    assert bench.door.lags(NOW)


@pytest.mark.parametrize(
    ("usual", "stated", "is_read", "is_urgent"),
    [
        (0, None, False, False),
        (0, "0", False, False),
        (0, "1", True, True),
        (0, "2", False, False),
        (0, "5", False, False),
        (1, None, False, False),
        (1, "1", False, False),
        (3, "2", True, True),
        (0, "soon", True, True),
        (0, "-1", True, True),
        (0, "1" * 30, True, True),
    ],
)
def test_who_states_to_be_more_important_than_who_was_refused_is_read_and_so_is_who_states_nonsense(
    bench: Bench, usual: int, stated: str | None, is_read: bool, is_urgent: bool
) -> None:
    bench.door.usual_priority = usual
    bench.outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS, level_of(usual))
    headers = [("user-agent", "test"), *([] if stated is None else [("dnn-priority", stated)])]
    assert (bench.door.verdict(INFER, NOW, NOW + 55 * MS, headers) is None) == is_read
    assert bench.door.is_urgent(headers) == is_urgent


@pytest.mark.parametrize(
    ("waited_ms", "left_ms", "code"),
    [(1.9, 0.5, None), (2.0, 7.9, EXHAUSTED), (2.0, 8.1, None), (10, 39, EXHAUSTED), (10, 41, None), (50, 0, EXPIRED)],
    ids=str,
)
def test_a_call_waits_to_be_read_for_a_quarter_of_what_is_left_to_it(
    bench: Bench, waited_ms: float, left_ms: float, code: int | None
) -> None:
    verdict = bench.door.gives_up(Call(NOW - int(waited_ms * MS), NOW + int(left_ms * MS)), NOW)
    assert (None if verdict is None else verdict.code) == code


def test_what_no_device_does_in_time_is_told_to_allow_more_and_not_to_come_again(bench: Bench) -> None:
    bench.outlook.hear_least(NOW, 6 * MS)
    verdict = bench.verdict(5)
    assert verdict is not None
    assert (verdict.code, verdict.trailers) == (EXPIRED, ())
    assert b"allow more time" in verdict.text
    assert bench.verdict(7) is None
    bench.door.flush()
    assert bench.told == [(INFER, UnreachableError, 1)]


@pytest.mark.parametrize("restarting", [False, True])
def test_a_device_that_is_started_again_is_given_as_the_cause(bench: Bench, restarting: bool) -> None:
    bench.outlook.hear(NOW, NOW + 40 * MS, NOW + 70 * MS, restarting=restarting)
    verdict = bench.verdict(55)
    assert verdict is not None
    assert verdict.code == EXHAUSTED
    assert (b"started again" in verdict.text, b"others wait" in verdict.text) == (restarting, not restarting)
    bench.door.flush()
    assert bench.told == [(INFER, RestartingError if restarting else OverloadedError, 1)]


def test_a_reader_that_had_nothing_to_do_is_not_late_whenever_bytes_come(bench: Bench) -> None:
    for _ in range(16):
        bench.door.rested(NOW)
        bench.door.read(NOW - 60 * MS, NOW)
    assert not bench.door.lags(NOW)
    assert bench.verdict(1) is None
    for _ in range(16):
        bench.door.read(NOW - 60 * MS, NOW + 3 * MS)
    assert bench.door.lags(NOW + 3 * MS), "since then it has had something to do"
    assert bench.verdict(2.9, NOW + 3 * MS) is not None
    assert bench.verdict(3.1, NOW + 3 * MS) is None


@pytest.mark.parametrize("granted_ns", [1, MS, 7 * MS, 10 * MS, 50 * MS + 3, 50 * MS + 4, 100_000 * MS + 1])
def test_the_moment_is_known_until_which_a_call_waits(bench: Bench, granted_ns: int) -> None:
    call = Call(NOW, NOW + granted_ns)
    until_ns = bench.door.waits_until_ns(NOW, NOW + granted_ns)
    assert bench.door.gives_up(call, until_ns) is not None
    assert bench.door.gives_up(call, until_ns - 4) is None
