"""The policy by itself, and both clients that obey it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from dnnclient import Client, OverloadedError, RetryPolicy, UnavailableError, aio
from dnnclient.retries import Attempts, RetryBudget, pushback_s
from hypothesis import given
from hypothesis import strategies as st

from dnncore.errors import BadParamError
from tests.client.fake_server import FakeServer, image

UNAVAILABLE, FULL = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
FAST = RetryPolicy(initial_backoff_s=0.001)


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, pushback: str | None = None) -> None:
        self._code, self._pushback = code, pushback

    def code(self) -> grpc.StatusCode:
        return self._code

    def trailing_metadata(self) -> Any:
        return None if self._pushback is None else (("other", "1"), ("grpc-retry-pushback-ms", self._pushback))


@given(st.integers(1, 20), st.floats(0, 0.999))
def test_waits_double_up_to_their_bound_and_are_drawn_from_the_upper_half(attempt: int, draw: float) -> None:
    policy = RetryPolicy(max_attempts=21, initial_backoff_s=0.1, max_backoff_s=3.0)
    wait_s = policy.wait_s(attempt, UNAVAILABLE, None, 1e9, draw)
    longest_s = min(3.0, 0.1 * 2.0 ** (attempt - 1))
    assert wait_s is not None
    assert longest_s / 2 <= wait_s <= longest_s


@pytest.mark.parametrize(
    ("attempt", "code", "pushback", "remaining_s", "expected"),
    [
        (1, FULL, 0.5, 9.0, 0.5),
        (1, FULL, 5.0, 9.0, 5.0),  # longer than the longest of our own
        (1, FULL, 5.0, 5.0, None),  # no time for another attempt
        (1, FULL, -1.0, 9.0, None),
        (1, FULL, 0.0, 9.0, 0.0),
        (2, UNAVAILABLE, None, 9.0, 0.05),
        (2, UNAVAILABLE, None, 0.04, None),
        (4, UNAVAILABLE, None, 9.0, None),  # of four attempts
        (4, UNAVAILABLE, 0.1, 9.0, None),
        (1, grpc.StatusCode.INTERNAL, None, 9.0, None),
        (1, grpc.StatusCode.DEADLINE_EXCEEDED, 0.1, 9.0, None),
    ],
)
def test_a_call_is_sent_again_when_the_server_says_if_there_is_time_and_an_attempt_left(
    attempt: int, code: grpc.StatusCode, pushback: float | None, remaining_s: float, expected: float | None
) -> None:
    assert RetryPolicy().wait_s(attempt, code, pushback, remaining_s, 0.0) == expected


def test_calls_that_were_refused_together_come_back_apart_and_not_before_their_time() -> None:
    waits = [RetryPolicy().wait_s(1, FULL, 1.0, 9.0, draw) or 0.0 for draw in (0.0, 0.5, 0.999)]
    assert 1.0 == waits[0] < waits[1] < waits[2] < 1.1


@pytest.mark.parametrize(("text", "expected"), [("250", 0.25), ("0", 0.0), ("-1", -0.001), ("soon", -1.0)])
def test_pushback_is_read_from_the_trailing_metadata(text: str, expected: float) -> None:
    assert pushback_s((("other", "7"), ("grpc-retry-pushback-ms", text))) == expected
    assert pushback_s(()) is None


def test_the_budget_of_a_client_bounds_what_a_server_in_trouble_gets_on_top() -> None:
    policy = RetryPolicy(budget=10, budget_ratio=0.2)
    budget = RetryBudget(policy)
    again = [Attempts(policy, budget, 60.0).wait_s(Refusal(UNAVAILABLE)) is not None for _ in range(1000)]
    assert all(again[:10])
    assert sum(again) == pytest.approx(10 + 0.2 * 1000, abs=3)


def test_attempts_end_with_the_calls_deadline() -> None:
    policy, now = RetryPolicy(max_attempts=100, initial_backoff_s=0.4, multiplier=1), [0.0]
    attempts = Attempts(policy, RetryBudget(policy), 1.0, clock=lambda: now[0], draw=lambda: 0.0)
    for expected in (0.2, 0.2, 0.2, 0.2, None):
        assert attempts.wait_s(Refusal(UNAVAILABLE)) == expected
        now[0] += 0.2
    assert attempts.remaining_s == pytest.approx(0.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 0},
        {"initial_backoff_s": 0.0},
        {"initial_backoff_s": 3.0},
        {"multiplier": 0.5},
        {"budget": -1},
        {"budget_ratio": 2.0},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(BadParamError):
        RetryPolicy(**settings)  # type: ignore[arg-type]


def _blocking(server: FakeServer, retry: RetryPolicy | None, timeout_s: float) -> int:
    with Client(server.target, model="digits", retry=retry, timeout_s=timeout_s) as client:
        return client.classify(image(3))[0].best.index


def _asyncio(server: FakeServer, retry: RetryPolicy | None, timeout_s: float) -> int:
    async def run() -> int:
        async with aio.Client(server.target, model="digits", retry=retry, timeout_s=timeout_s) as client:
            return (await client.classify(image(3)))[0].best.index

    return asyncio.run(run())


CLIENTS = pytest.mark.parametrize("classify", [_blocking, _asyncio])
Classify = Callable[[FakeServer, RetryPolicy | None, float], int]


@CLIENTS
def test_a_refused_call_is_answered_at_a_later_attempt(server: FakeServer, classify: Classify) -> None:
    server.refusals.extend([(UNAVAILABLE, None), (FULL, "1"), (FULL, None)])
    assert classify(server, FAST, 30.0) == 3
    assert server.num_refused == 3


@CLIENTS
def test_without_a_policy_and_after_the_last_attempt_the_refusal_is_raised(
    server: FakeServer, classify: Classify
) -> None:
    server.refusals.extend(itertools.repeat((UNAVAILABLE, None), 5))
    with pytest.raises(UnavailableError, match="refused"):
        classify(server, None, 30.0)
    assert server.num_refused == 1
    with pytest.raises(UnavailableError, match="refused"):
        classify(server, FAST, 30.0)
    assert server.num_refused == 5


@CLIENTS
@pytest.mark.parametrize("pushback", ["20000", "-1"])
def test_a_pushback_beyond_the_deadline_or_below_zero_ends_the_call_at_once_with_the_servers_reason(
    server: FakeServer, classify: Classify, pushback: str
) -> None:
    server.refusals.append((FULL, pushback))
    with pytest.raises(OverloadedError, match="refused"):
        classify(server, FAST, 10.0)
    assert server.num_refused == 1
    assert server.num_calls == 0


def test_several_channels_take_turns() -> None:
    with (
        FakeServer(gather=4) as server,
        Client(server.target, model="digits", channels=2) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        assert [a[0].best.index for a in pool.map(client.classify, map(image, range(4)))] == [0, 1, 2, 3]
    assert len(server.peers) == 2
    with pytest.raises(BadParamError, match="channels is 0"):
        Client("nowhere:1", channels=0)
