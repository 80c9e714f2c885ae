"""What a runner does with batches: each request gets its rows, and what fails fails alone."""

from __future__ import annotations

import threading

import pytest
from dnnserve.engine.buckets import batch_buckets
from dnnserve.envelope import Answer
from dnnserve.errors import ExecutionError

from dnncore.errors import OutOfMemoryError
from tests.server.fakes import PATIENCE_S, Lab, outputs_of
from tests.server.runner.fleet import Fleet


def test_each_request_gets_its_own_rows_of_the_batch(lab: Lab, fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(lab, "cpu").open(hold_until_requests=3))
    requests = [fleet.submit(value, rows) for value, rows in ((1.0, 1), (2.0, 3), (5.0, 2))]
    fleet.inbox.wait(3)
    assert lab.batches == [("cpu", 6)]
    for request, (value, rows) in zip(requests, ((1.0, 1), (2.0, 3), (5.0, 2)), strict=True):
        answer = fleet.inbox.of(request).outcome
        assert isinstance(answer, Answer)
        assert outputs_of(request).tolist() == [[value, 2 * value, 3 * value]] * rows
        assert answer.batch_rows == 6
        times = answer.times
        assert request.arrival_ns <= times.taken_ns <= times.staged_ns <= times.inferred_ns <= times.finished_ns


def test_an_exception_fails_its_batch_alone(lab: Lab, fleets: list[Fleet]) -> None:
    lab.fail_next("cpu", RuntimeError("secret"))
    fleets.append(fleet := Fleet(lab, "cpu").open(hold_until_requests=2))
    failed = [fleet.submit(1.0), fleet.submit(2.0)]
    fleet.inbox.wait(2)
    good = fleet.submit(3.0)
    fleet.inbox.wait(3)
    for request in failed:
        outcome = fleet.inbox.of(request).outcome
        assert isinstance(outcome, ExecutionError)
        assert "secret" not in str(outcome)
    assert isinstance(fleet.inbox.of(good).outcome, Answer)
    assert not fleet.changes


def test_the_next_full_batch_is_begun_while_one_runs_and_a_partial_one_is_not(fleets: list[Fleet]) -> None:
    lab = Lab(slots=2)
    lab.pause("cpu")
    fleets.append(fleet := Fleet(lab, "cpu").open(hold_until_requests=3))
    first, full, partial = fleet.submit(1.0, 8), fleet.submit(2.0, 8), fleet.submit(3.0, 4)
    lab.wait_begun(2)
    lab.wait_running("cpu")
    assert lab.begun == ["cpu", "cpu"]
    assert [rows for _, rows in lab.batches] == [8], "the first still runs"
    lab.resume()
    fleet.inbox.wait(3)
    for request, value in ((first, 1.0), (full, 2.0), (partial, 3.0)):
        answer = fleet.inbox.of(request).outcome
        assert isinstance(answer, Answer)
        assert outputs_of(request)[0, 0] == value
    assert [rows for _, rows in lab.batches] == [8, 8, 4]


def test_devices_are_closed_by_the_thread_that_opened_them(lab: Lab) -> None:
    fleet = Fleet(lab, "cuda:0", "cuda:1").open()
    fleet.close()
    assert sorted(lab.closed) == ["cuda:0", "cuda:1"]
    assert not [thread for thread in threading.enumerate() if thread.name in ("dnnserve-cuda:0", "dnnserve-expiry")]


def test_an_error_while_loading_reaches_who_waits_and_closes_the_device(lab: Lab, fleets: list[Fleet]) -> None:
    lab.load_error = OutOfMemoryError("no room for the weights")
    fleets.append(fleet := Fleet(lab, "cpu"))
    with pytest.raises(OutOfMemoryError, match="no room"):
        fleet.runners[0].wait_loaded()
    assert fleet.runners[0].join(PATIENCE_S)
    assert lab.closed == ["cpu"]
    assert not fleet.scheduler.healthy_devices


def test_busy_time_grows_with_batches(lab: Lab, fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(lab, "cpu").open())
    assert fleet.runners[0].busy_seconds == 0
    fleet.submit(1.0)
    fleet.inbox.wait(1)
    assert fleet.runners[0].busy_seconds > 0


@pytest.mark.parametrize(
    ("rows", "buckets"), [(1, (1,)), (2, (1, 2)), (8, (1, 2, 4, 8)), (24, (1, 2, 4, 8, 16, 24)), (3, (1, 2, 3))]
)
def test_buckets_are_powers_of_two_and_the_maximum(rows: int, buckets: tuple[int, ...]) -> None:
    assert batch_buckets(rows) == buckets
