"""Requests that come together are queued together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dnnserve.envelope import InferenceRequest, ModelKey, OwnBlock
from dnnserve.errors import QueueFullError
from dnnserve.front.intake import Intake

MODEL = ModelKey("toy", 1)


class RecordingQueue:
    """What was submitted together, and what was cancelled, in order."""

    def __init__(self) -> None:
        self.submitted: list[list[int]] = []
        self.cancelled: list[int] = []
        self.error: Exception | None = None

    def submit(self, *requests: InferenceRequest) -> None:
        if self.error is not None:
            raise self.error
        self.submitted.append([request.ticket for request in requests])

    def cancel(self, ticket: int) -> None:
        assert any(ticket in together for together in self.submitted), "cancelled before it was queued"
        self.cancelled.append(ticket)


class StubCall:
    """A call that is cancelled, or has been."""

    def __init__(self) -> None:
        self.cancelled = False
        self.act: Callable[[], None] | None = None

    def on_cancel(self, act: Callable[[], None]) -> None:
        self.act = act
        if self.cancelled:
            act()


def request() -> InferenceRequest:
    return InferenceRequest(MODEL, OwnBlock([np.zeros((1, 4), np.float32)]), 0, None, lambda _completions: None)


@pytest.fixture
def queue() -> RecordingQueue:
    return RecordingQueue()


@pytest.fixture
def taken_back() -> list[tuple[int, Exception]]:
    return []


@pytest.fixture
def intake(queue: RecordingQueue, taken_back: list[tuple[int, Exception]]) -> Intake:
    return Intake(queue, lambda request, error: taken_back.append((request.ticket, error)))


def submit(intake: Intake, count: int) -> tuple[list[int], list[Any]]:
    """Submit so many requests: their tickets and calls."""
    requests, calls = [request() for _ in range(count)], [StubCall() for _ in range(count)]
    for each, call in zip(requests, calls, strict=True):
        intake.submit(each, call)  # type: ignore[arg-type]  # all of a call that is used here
    return [each.ticket for each in requests], calls


def test_the_thread_that_flushes_gathers(intake: Intake, queue: RecordingQueue) -> None:
    intake.flush()
    tickets, _ = submit(intake, 3)
    assert intake.holds
    assert queue.submitted == []
    intake.flush()
    assert not intake.holds
    assert queue.submitted == [tickets]
    intake.flush()
    assert queue.submitted == [tickets]


def test_what_another_thread_submits_is_queued_at_once(intake: Intake, queue: RecordingQueue) -> None:
    intake.flush()
    mine, _ = submit(intake, 1)
    theirs: list[int] = []
    thread = threading.Thread(target=lambda: theirs.extend(submit(intake, 2)[0]))
    thread.start()
    thread.join()
    assert queue.submitted == [[ticket] for ticket in theirs]
    intake.flush()
    assert queue.submitted[2:] == [mine]


def test_where_nobody_flushes_every_request_is_queued_at_once(intake: Intake, queue: RecordingQueue) -> None:
    tickets, _ = submit(intake, 2)
    assert queue.submitted == [[ticket] for ticket in tickets]


def test_many_do_not_wait_for_more(intake: Intake, queue: RecordingQueue) -> None:
    intake.flush()
    tickets, _ = submit(intake, 70)
    assert queue.submitted == [tickets[:32], tickets[32:64]]


def test_a_call_that_ends_while_its_request_is_gathered_is_cancelled_once_that_is_queued(
    intake: Intake, queue: RecordingQueue
) -> None:
    intake.flush()
    tickets, calls = submit(intake, 2)
    calls[1].cancelled = True
    assert calls[1].act is None
    intake.flush()
    assert queue.cancelled == [tickets[1]]
    calls[0].act()
    assert queue.cancelled == [tickets[1], tickets[0]]


def test_requests_that_the_queue_fails_to_take_are_taken_back_each(
    intake: Intake, queue: RecordingQueue, taken_back: list[tuple[int, Exception]]
) -> None:
    intake.flush()
    queue.error = QueueFullError("full")
    tickets, calls = submit(intake, 2)
    intake.flush()
    assert taken_back == [(ticket, queue.error) for ticket in tickets]
    assert [call.act for call in calls] == [None, None]
    queue.error = None
    later, _ = submit(intake, 1)
    intake.flush()
    assert queue.submitted == [later]
