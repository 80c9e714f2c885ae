"""Devices that hang: a batch does not end, and no error comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from dnnserve.batch import Batch
from dnnserve.engine.watchdog import Watchdog
from dnnserve.envelope import Answer, InferenceRequest
from dnnserve.errors import DeadlineExpiredError
from dnnserve.processes.restarts import Restarts

from tests.server.fakes import PATIENCE_S, FakeClock, Lab, outputs_of, wait_until
from tests.server.runner.fleet import SPEC, Fleet


def test_a_batch_that_never_ends_goes_to_another_device_and_its_late_answer_is_dropped(
    lab: Lab, fleets: list[Fleet]
) -> None:
    lab.pause("cuda:0")
    lab.pause("cuda:1")
    fleets.append(fleet := Fleet(lab, "cuda:0", "cuda:1").open())
    requests = [fleet.submit(float(value), 8) for value in range(6)]
    lab.wait_running("cuda:0")
    lab.wait_running("cuda:1")
    lab.resume("cuda:1")
    fleet.inbox.wait(5)  # all but the one that hangs: from now on no other batch can be slow
    watchdog = Watchdog(fleet.runners, limit_s=0.2)
    watchdog.start()
    fleet.inbox.wait(6)
    outcomes = [fleet.inbox.of(request).outcome for request in requests]
    assert all(isinstance(outcome, Answer) and outcome.device == "cuda:1" for outcome in outcomes), outcomes
    assert fleet.scheduler.healthy_devices == {"cuda:1"}
    ((device, reason),) = fleet.changes
    assert device == "cuda:0"
    assert reason is not None
    assert "has not ended" in reason
    watchdog.stop()
    assert fleet.runners[0].join(0.0), "who stops the server would wait for a device that hangs"
    lab.resume()
    wait_until(lambda: lab.closed == ["cuda:0"])
    assert len(fleet.inbox.completions) == 6


def hanging(fleets: list[Fleet], lab: Lab, clock: Callable[[], int] = time.monotonic_ns) -> Fleet:
    """Two devices that stand still, and take a batch ahead each."""
    for device in ("cuda:0", "cuda:1"):
        lab.pause(device)
    fleets.append(fleet := Fleet(lab, "cuda:0", "cuda:1", clock=clock).open(hold_until_requests=4))
    return fleet


def answered_by(fleet: Fleet, requests: Sequence[InferenceRequest]) -> list[str]:
    """The devices that have answered requests rightly, whose values are their places."""
    answers = [fleet.inbox.of(request).outcome for request in requests]
    assert [outputs_of(request)[0, 0] for request in requests] == list(range(len(requests)))
    return [answer.device if isinstance(answer, Answer) else str(answer) for answer in answers]


def test_what_was_taken_ahead_of_a_batch_that_never_ends_goes_to_another_device_too(fleets: list[Fleet]) -> None:
    fleet = hanging(fleets, lab := Lab(slots=2))
    requests = [fleet.submit(float(value), 8) for value in range(4)]
    lab.wait_begun(4)
    lab.wait_running("cuda:0")
    assert fleet.runners[0].give_up_when_stuck(0)
    lab.resume("cuda:1")
    fleet.inbox.wait(4)
    assert answered_by(fleet, requests) == ["cuda:1"] * 4
    assert fleet.scheduler.repeats() == {SPEC.key: 2}
    lab.resume()
    wait_until(lambda: lab.closed == ["cuda:0"])
    assert len(fleet.inbox.completions) == 4


def test_what_was_taken_ahead_and_has_no_time_left_when_its_device_is_given_up_is_told_so(fleets: list[Fleet]) -> None:
    fleet = hanging(fleets, lab := Lab(slots=2), clock := FakeClock())
    requests = [fleet.submit(float(value), 8, deadline_ms=500 if value % 2 else 60_000) for value in range(4)]
    lab.wait_begun(4)
    lab.wait_running("cuda:0")
    clock.advance_ms(1000)
    given_up = {request.ticket for flight in fleet.runners[0]._flights for request in flight.batch.requests}
    assert fleet.runners[0].give_up_when_stuck(0)
    fleet.inbox.wait(sum(request.ticket in given_up for request in requests if request.deadline_ns < clock()))  # type: ignore[operator]
    lab.resume("cuda:1")
    fleet.inbox.wait(4)
    for request in requests:
        outcome = fleet.inbox.of(request).outcome
        expired = request.ticket in given_up and request.deadline_ns < clock()  # type: ignore[operator]
        assert isinstance(outcome, DeadlineExpiredError if expired else Answer), outcome
    lab.resume()


def test_a_batch_that_fails_to_begin_after_its_device_was_given_up_is_answered_by_the_other_alone(
    fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = hanging(fleets, lab := Lab(slots=2))
    stuck, goes_on, begun = threading.Event(), threading.Event(), lab.began

    def begin(device: str) -> None:
        begun(device)
        if device == "cuda:0" and lab.begun.count(device) == 2:
            stuck.set()
            assert goes_on.wait(PATIENCE_S)
            raise RuntimeError("too late to be told")

    monkeypatch.setattr(lab, "began", begin)
    requests = [fleet.submit(float(value), 8) for value in range(4)]
    lab.wait_begun(4)
    assert stuck.wait(PATIENCE_S)
    assert fleet.runners[0].give_up_when_stuck(0)
    goes_on.set()
    wait_until(lambda: lab.closed == ["cuda:0"])
    lab.resume()
    fleet.inbox.wait(4)
    assert answered_by(fleet, requests) == ["cuda:1"] * 4


def test_a_batch_that_is_taken_in_the_moment_in_which_its_device_is_given_up_goes_to_another(
    fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = hanging(fleets, lab := Lab(slots=2))
    take_ahead = fleet.scheduler.take_ahead

    def give_up_then(device: str, *arguments: Callable[[], bool]) -> Batch | None:
        batch = take_ahead(device, *arguments)
        if device == "cuda:0" and batch is not None:
            assert fleet.runners[0].give_up_when_stuck(0)
        return batch

    monkeypatch.setattr(fleet.scheduler, "take_ahead", give_up_then)
    requests = [fleet.submit(float(value), 8) for value in range(4)]
    wait_until(lambda: lab.closed == ["cuda:0"])
    lab.resume()
    fleet.inbox.wait(4)
    assert answered_by(fleet, requests) == ["cuda:1"] * 4


def test_a_host_that_hangs_and_can_be_killed_is_opened_again(lab: Lab, fleets: list[Fleet]) -> None:
    lab.killable = True
    lab.pause("cuda:0")
    fleets.append(fleet := Fleet(lab, "cuda:0", restarts=Restarts(first_s=0.0)).open())
    fleet.submit(1.0)
    lab.wait_running("cuda:0")
    assert fleet.runners[0].give_up_when_stuck(0)
    wait_until(lambda: len(fleet.changes) == 2)
    (_, reason), (_, back) = fleet.changes
    assert reason is not None
    assert "has not ended" in reason
    assert back is None
    assert not fleet.runners[0].given_up


def test_a_batch_that_cannot_be_begun_does_not_count_as_one_that_hangs(
    lab: Lab, fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_device: str) -> None:
        raise RuntimeError("no descriptor")

    lab.killable = True
    fleets.append(fleet := Fleet(lab, "cpu").open())
    monkeypatch.setattr(lab, "began", refuse)
    fleet.submit(1.0)
    fleet.inbox.wait(1)
    assert not fleet.runners[0].give_up_when_stuck(0)
