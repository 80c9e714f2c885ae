"""The pool that writes large outputs: how many it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from dnnserve.front.writing import WritePool

from tests.server.fakes import PATIENCE_S, wait_until


@contextmanager
def standing_still() -> Iterator[Callable[[], None]]:
    """What a thread does until the context ends."""
    go = threading.Event()

    def act() -> None:
        assert go.wait(PATIENCE_S)

    try:
        yield act
    finally:
        go.set()


def test_no_more_answers_wait_than_may_and_there_is_room_again_once_one_has_been_written() -> None:
    pool = WritePool(max_waiting=3, threads=1)
    with standing_still() as act:
        assert [pool.hand_over(act) for _ in range(4)] == [True, True, True, False]
    wait_until(lambda: pool.hand_over(lambda: None))
    pool.close()


def test_what_was_taken_is_written_although_the_pool_is_closed_and_nothing_more_is_taken() -> None:
    pool, written = WritePool(threads=1), threading.Event()
    with standing_still() as act:
        assert pool.hand_over(act)
        assert pool.hand_over(written.set)
        pool.close()
        assert not pool.hand_over(act)
    assert written.wait(PATIENCE_S)


def test_what_goes_wrong_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("the tracer's disk is full")

    pool, written = WritePool(threads=1), threading.Event()
    assert pool.hand_over(fail)
    assert pool.hand_over(written.set)
    assert written.wait(PATIENCE_S)
    pool.close()
    assert "the tracer's disk is full" in caplog.text
