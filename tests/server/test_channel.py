"""The channel between a front end's process and the scheduler's, with both ends in this process."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dnnserve.batch import Batch
from dnnserve.channel.blocks import Blocks
from dnnserve.channel.messages import Outcomes, Refused
from dnnserve.channel.port import Port
from dnnserve.channel.remote import RemoteScheduler
from dnnserve.envelope import Answer, BatchTimes, InferenceRequest
from dnnserve.errors import (
    DeviceLostError,
    InvalidRequestError,
    QueueFullError,
    RequestCancelledError,
    UnavailableError,
)
from dnnserve.processes.arena import Arena
from dnnserve.processes.link import Link
from dnnserve.processes.outbox import Outbox
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits
from hypothesis import given
from hypothesis import strategies as st

from tests.server.fakes import CLASSES, PATIENCE_S, Inbox, block_of, make_rows, make_spec, outputs_of, wait_until

SPEC = make_spec()
ARENA = 1 << 16


@given(st.lists(st.tuples(st.integers(0, 1 << 17), st.booleans()), max_size=60))
def test_blocks_never_overlap_and_are_whole_again_when_all_are_back(steps: list[tuple[int, bool]]) -> None:
    total = 1 << 18
    blocks = Blocks(total)
    out: dict[int, int] = {}
    for nbytes, back in steps:
        if back and out:
            offset = min(out)
            del out[offset]
            blocks.give_back(offset)
            continue
        taken = blocks.take(nbytes)
        if taken is None:
            assert sum(out.values()) + nbytes > total // 4, "a quarter is in use at most, and there is no room"
            continue
        assert all(taken + nbytes <= o or o + n <= taken for o, n in out.items() if n and nbytes)
        assert 0 <= taken <= total - nbytes
        out[taken] = nbytes
    for offset in out:
        blocks.give_back(offset)
    assert blocks.take(total) == 0


def test_a_signature_travels_without_what_this_process_has_found_out_of_it() -> None:
    """Other threads find out more while one sends it."""
    used, fresh = make_spec().signature, make_spec().signature
    used.layout(3, pixels=True, wanted=(0,))
    assert pickle.dumps(used) == pickle.dumps(fresh)
    arrived = pickle.loads(pickle.dumps(used))
    assert arrived == used
    assert arrived.layout(3, pixels=True, wanted=(0,)) == used.layout(3, pixels=True, wanted=(0,))


class Ends:
    """Both ends and what listens to each."""

    def __init__(self) -> None:
        here, there = map(Link, Link.pair())
        arena = Arena.of(ARENA)
        self.scheduler = Scheduler()
        self.scheduler.start()
        self.scheduler.add_model(SPEC.key, Limits(max_batch_rows=8, max_queue_requests=100))
        self.scheduler.add_device("cpu")
        self.remote = RemoteScheduler(here, arena, time.monotonic_ns)
        self.remote.serve(((0, SPEC),))
        self.port = Port(self.scheduler, Outbox(there, "test"), arena, {0: SPEC})
        self.links = here, there
        self.inbox = Inbox()
        self._threads = [threading.Thread(target=self._front), threading.Thread(target=self._back)]
        for thread in self._threads:
            thread.start()

    def _front(self) -> None:
        while (received := self.links[0].receive()) is not None:
            self.remote.complete(received[0])
        self.remote.lose("the end")

    def _back(self) -> None:
        while (received := self.links[1].receive()) is not None:
            self.port.take(received[0])

    def submit(self, rows: np.ndarray, deadline_ns: int | None = None) -> InferenceRequest:
        request = InferenceRequest(SPEC.key, block_of(rows), time.monotonic_ns(), deadline_ns, self.inbox.deliver, 3)
        self.remote.submit(request)
        return request

    def close(self) -> None:
        self.links[0].shut_down()
        for thread in self._threads:
            thread.join()
        self.port.close()
        self.scheduler.stop()
        for link in self.links:
            link.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_rows_and_pixels_arrive_as_they_are_and_outputs_come_back_with_their_times(ends: Ends) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 3, 2, 4)).astype(np.float32)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 2, 4, 3), np.uint8)
    for count, sent in enumerate((rows, pixels), start=1):
        request = ends.submit(sent)
        batch = ends.scheduler.take("cpu")
        assert batch is not None
        (found,) = batch.requests
        (arrived,) = found.block.read()
        assert arrived.dtype == sent.dtype
        assert np.array_equal(arrived, sent)
        assert (found.arrival_ns, found.priority) == (request.arrival_ns, 3)
        outputs = np.arange(len(sent) * CLASSES, dtype=np.float32).reshape(len(sent), CLASSES)
        found.block.write({0: outputs})
        assert np.array_equal(found.block.read()[0], sent), "a request that is repeated finds its rows"
        ends.scheduler.complete(batch, [Answer("cpu", len(sent), BatchTimes(1, 2, 3, 4))])
        completion = ends.inbox.wait(count)[-1]
        assert completion.request is request
        assert isinstance(completion.outcome, Answer)
        assert np.array_equal(outputs_of(request), outputs)
        assert completion.outcome.times == BatchTimes(1, 2, 3, 4)


def test_a_cancelled_request_and_one_that_is_refused_come_back_as_their_errors(ends: Ends) -> None:
    cancelled = ends.submit(make_rows(1.0))
    wait_until(lambda: ends.scheduler.in_flight == 1)
    ends.remote.cancel(cancelled.ticket)
    ends.inbox.wait(1)
    assert isinstance(ends.inbox.of(cancelled).outcome, RequestCancelledError)
    ends.scheduler.lose_device("cpu", "gone")
    refused = ends.submit(make_rows(1.0))
    ends.inbox.wait(2)
    outcome = ends.inbox.of(refused).outcome
    assert isinstance(outcome, UnavailableError)
    assert "gone" in str(outcome)


def test_a_full_arena_refuses_and_has_room_again(ends: Ends) -> None:
    waiting = [ends.submit(make_rows(1.0)) for _ in range(ARENA // 4096)]
    refused = ends.submit(make_rows(1.0))
    outcome = ends.inbox.of(refused).outcome
    assert isinstance(outcome, QueueFullError)
    assert outcome.retry_after_ms
    wait_until(lambda: ends.scheduler.in_flight == len(waiting))
    for request in waiting:
        ends.remote.cancel(request.ticket)
    ends.inbox.wait(len(waiting) + 1)
    ends.submit(make_rows(1.0, 2))
    wait_until(lambda: ends.scheduler.in_flight == 1)


def take(ends: Ends) -> Batch:
    batch = ends.scheduler.take("cpu")
    assert batch is not None
    return batch


def test_what_no_arena_could_hold_is_refused_for_good(ends: Ends) -> None:
    request = ends.submit(make_rows(1.0, ARENA // 96))  # the rows alone fill it, and the answer comes behind them
    outcome = ends.inbox.of(request).outcome
    assert isinstance(outcome, InvalidRequestError)
    assert "send fewer rows, or start the server with a larger --front-memory-mib" in str(outcome)


def test_the_block_of_a_cancelled_request_is_not_given_out_while_a_device_has_it(ends: Ends) -> None:
    running = ends.submit(make_rows(7.0))
    batch = take(ends)
    ends.remote.cancel(running.ticket)
    ends.inbox.wait(1)
    assert isinstance(ends.inbox.of(running).outcome, RequestCancelledError)
    others = [ends.submit(make_rows(1.0)) for _ in range(ARENA // 4096)]
    assert isinstance(ends.inbox.of(others[-1]).outcome, QueueFullError)
    assert np.array_equal(batch.requests[0].block.read()[0], make_rows(7.0))
    batch.requests[0].block.write({0: np.ones((1, CLASSES), np.float32)})  # late, and for nobody
    ends.scheduler.complete(batch, [Answer("cpu", 1, BatchTimes(1, 2, 3, 4))])
    wait_until(lambda: ends.remote._held == {})
    found = take(ends).requests[0]
    assert np.array_equal(found.block.read()[0], make_rows(1.0))
    later = ends.submit(make_rows(2.0))
    wait_until(lambda: ends.scheduler.in_flight == len(others))
    assert later.ticket not in {completion.request.ticket for completion in ends.inbox.completions}


def test_a_block_that_a_lost_device_had_is_free_once_the_request_is_answered(ends: Ends) -> None:
    requests = [ends.submit(make_rows(1.0)) for _ in range(ARENA // 4096)]
    wait_until(lambda: ends.scheduler.in_flight == len(requests))
    batch = take(ends)
    ends.remote.cancel(batch.requests[0].block.ticket)  # type: ignore[attr-defined]
    ends.inbox.wait(1)
    assert len(ends.remote._held) == 1
    assert ends.scheduler.put_back(batch, DeviceLostError("gone")) == len(batch.requests) - 1
    wait_until(lambda: ends.remote._held == {})
    again = take(ends)
    assert batch.requests[0] not in again.requests
    ends.scheduler.complete(again, [Answer("cpu", 1, BatchTimes(1, 2, 3, 4))] * len(again.requests))
    ends.inbox.wait(1 + len(again.requests))
    assert len(ends.remote._waiting) == len(requests) - 1 - len(again.requests)


def test_the_arena_of_a_front_end_that_has_gone_lasts_until_no_device_has_a_block_of_it(ends: Ends) -> None:
    ends.submit(make_rows(5.0))
    batch = take(ends)
    ends.links[0].shut_down()
    ends.port.close()
    assert ends.scheduler.in_flight == 0
    assert not ends.port.arena.closed
    assert np.array_equal(batch.requests[0].block.read()[0], make_rows(5.0))
    ends.scheduler.complete(batch, [Answer("cpu", 1, BatchTimes(1, 2, 3, 4))])
    assert ends.port.arena.closed


def test_requests_of_a_crowd_are_sent_together(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[int] = []
    send = ends.links[0].note

    def note(note: tuple[Any, ...]) -> bool:
        notes.append(len(note[0]))
        return send(note)

    monkeypatch.setattr(ends.links[0], "note", note)
    count = ARENA // 4096
    for _ in range(count):
        ends.submit(make_rows(1.0))
    wait_until(lambda: ends.scheduler.in_flight == count)
    assert sum(notes) == count
    assert len(notes) < count


def test_what_comes_after_the_scheduler_has_gone_is_unavailable(ends: Ends) -> None:
    ends.links[0].shut_down()
    wait_until(lambda: bool(ends.remote._lost))
    request = ends.submit(make_rows(1.0))
    ends.inbox.wait(1)
    assert isinstance(ends.inbox.of(request).outcome, UnavailableError)


def test_when_the_scheduler_goes_what_waits_is_unavailable_and_when_the_front_end_goes_it_is_given_up(
    ends: Ends,
) -> None:
    request = ends.submit(make_rows(1.0))
    wait_until(lambda: ends.scheduler.in_flight == 1)
    ends.links[0].shut_down()
    ends.inbox.wait(1)
    assert isinstance(ends.inbox.of(request).outcome, UnavailableError)
    ends.port.close()
    assert ends.scheduler.in_flight == 0


@pytest.mark.parametrize("end", [0, 1], ids=["request", "answer"])
def test_what_cannot_be_sent_for_want_of_a_descriptor_leaves_nobody_waiting(
    ends: Ends, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(*_: object, **__: object) -> bool:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(ends.links[end], "note", note)
    request = ends.submit(make_rows(1.0))
    if end:
        ends.scheduler.complete(take(ends), [Answer("cpu", 1, BatchTimes(1, 2, 3, 4))])
    ends.inbox.wait(1)
    assert isinstance(ends.inbox.of(request).outcome, UnavailableError)


def test_that_a_block_is_free_may_be_heard_before_the_refusal_of_its_request() -> None:
    """Whoever completes the request and the device that lets go are two threads, and neither waits for the other."""
    here, there = map(Link, Link.pair())
    inbox = Inbox()
    remote = RemoteScheduler(here, Arena.of(4096), time.monotonic_ns)
    remote.serve(((0, SPEC),))

    def submit() -> InferenceRequest:
        request = InferenceRequest(SPEC.key, block_of(make_rows(1.0, 8)), 0, None, inbox.deliver)
        remote.submit(request)
        return request

    requests = []
    while not inbox.completions:
        requests.append(submit())
    first = requests[0].ticket
    remote.complete(tuple(Outcomes(freed=(first,))))
    remote.complete(
        tuple(Outcomes(refused=(tuple(Refused(first, "RequestCancelledError", "gone", None, None, 0, True)),)))
    )
    assert len(inbox.completions) == 2
    submit()
    assert len(inbox.completions) == 2, "its block is given out again"
    assert not remote._held
    assert not remote._freed
    remote.lose("the end")
    there.close()
    here.close()


def test_a_message_of_any_size_arrives_with_its_files() -> None:
    here, there = map(Link, Link.pair())
    with Path(os.devnull).open("rb") as file:
        for size in (1, 1 << 16, 3 << 20):
            here.send(b"x" * size, [file.fileno()])
            received = there.receive()
            assert received is not None
            message, fds = received
            assert message == b"x" * size
            (fd,) = fds
            os.close(fd)
    here.close()
    there.close()


@pytest.mark.parametrize("count", [1, 1 << 14, 1 << 20])
def test_a_note_of_any_size_arrives_or_is_not_sent_where_it_would_have_to_wait(count: int) -> None:
    here, there = map(Link, Link.pair())
    note = tuple(range(count))
    for wait in (True, False):
        assert here.note(note, wait=wait)
        received = there.receive()
        assert received is not None
        assert received[0] == note
        assert not received[1]
    while here.note((0,), wait=False):
        pass
    assert not here.note(note, wait=False)
    here.close()
    there.close()


def test_what_cannot_be_packed_is_logged_and_closes_the_link(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = Link.pair()
    theirs.settimeout(PATIENCE_S)
    here, there = Link(ours), Link(theirs)
    outbox = Outbox(here, "test")
    outbox.send(lambda: None)
    outbox.send("nobody reads this any more")
    assert there.receive() is None
    assert "function cannot be sent" in caplog.text
    outbox.close()
    here.close()
    there.close()
