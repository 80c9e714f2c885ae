"""Devices that are lost: who answers what they had, and how they come back."""

from __future__ import annotations

from dnnserve.envelope import Answer
from dnnserve.errors import DeviceLostError, UnavailableError
from dnnserve.processes.restarts import Restarts

from dnncore.errors import DeviceFaultError
from tests.server.fakes import PATIENCE_S, Lab, outputs_of, wait_until
from tests.server.runner.fleet import Fleet


def test_what_a_lost_device_was_running_is_answered_by_another(lab: Lab, fleets: list[Fleet]) -> None:
    lab.pause("cuda:0")
    lab.pause("cuda:1")
    fleets.append(fleet := Fleet(lab, "cuda:0", "cuda:1").open())
    lab.fail_next("cuda:0", DeviceFaultError("an illegal memory access"))
    first = [fleet.submit(1.0, 8), fleet.submit(2.0, 8)]
    lab.wait_running("cuda:0")
    lab.wait_running("cuda:1")
    later = [fleet.submit(value, 8) for value in (3.0, 4.0)]
    lab.resume()
    fleet.inbox.wait(4)
    answers = [fleet.inbox.of(request).outcome for request in (*first, *later)]
    assert all(isinstance(answer, Answer) and answer.device == "cuda:1" for answer in answers), answers
    assert fleet.changes == [("cuda:0", "an illegal memory access")]
    assert fleet.scheduler.healthy_devices == {"cuda:1"}
    assert fleet.runners[0].join(PATIENCE_S)
    assert lab.closed == ["cuda:0"]


def test_a_request_that_loses_a_second_device_is_answered_with_the_error(lab: Lab, fleets: list[Fleet]) -> None:
    names = ("cuda:0", "cuda:1", "cuda:2")
    for name in names:
        lab.fail_next(name, DeviceFaultError("gone"))
    fleets.append(fleet := Fleet(lab, *names).open())
    poison = fleet.submit(1.0)
    fleet.inbox.wait(1)
    assert isinstance(fleet.inbox.of(poison).outcome, DeviceLostError)
    assert len(fleet.scheduler.healthy_devices) == 1


def test_a_request_cancelled_on_a_device_that_is_lost_is_not_run_again(lab: Lab, fleets: list[Fleet]) -> None:
    lab.pause("cuda:0")
    lab.pause("cuda:1")
    fleets.append(fleet := Fleet(lab, "cuda:0", "cuda:1").open())
    request = fleet.submit(1.0)
    wait_until(lambda: bool(lab.running))
    (lost,) = lab.running
    lab.fail_next(lost, DeviceFaultError("gone"))
    fleet.scheduler.cancel(request.ticket)
    lab.resume()
    (runner,) = (runner for runner in fleet.runners if runner.label == lost)
    assert runner.join(PATIENCE_S)
    fleet.submit(2.0)
    fleet.inbox.wait(2)
    assert [rows for _, rows in lab.batches] == [1, 1], "the later request ran with, or behind, the cancelled one"


def test_a_fault_hands_over_what_runs_and_what_was_begun_behind_it(fleets: list[Fleet]) -> None:
    lab = Lab(slots=2)
    for device in ("cuda:0", "cuda:1"):
        lab.pause(device)
    fleets.append(fleet := Fleet(lab, "cuda:0", "cuda:1").open(hold_until_requests=4))
    lab.fail_next("cuda:0", DeviceFaultError("gone"))
    requests = [fleet.submit(float(value), 8) for value in range(4)]
    lab.wait_begun(4)
    lab.resume()
    fleet.inbox.wait(4)
    answers = [fleet.inbox.of(request).outcome for request in requests]
    assert [outputs_of(request)[0, 0] for request in requests] == [0.0, 1.0, 2.0, 3.0]
    assert all(isinstance(answer, Answer) and answer.device == "cuda:1" for answer in answers)


def test_without_a_healthy_device_everything_is_answered_unavailable(lab: Lab, fleets: list[Fleet]) -> None:
    lab.pause("cpu")
    lab.fail_next("cpu", DeviceFaultError("gone"))
    fleets.append(fleet := Fleet(lab, "cpu").open())
    running = fleet.submit(1.0)
    lab.wait_running("cpu")
    queued = fleet.submit(2.0)
    lab.resume()
    fleet.inbox.wait(2)
    assert isinstance(fleet.inbox.of(running).outcome, DeviceLostError)
    assert isinstance(fleet.inbox.of(queued).outcome, UnavailableError)
    assert isinstance(fleet.inbox.of(fleet.submit(3.0)).outcome, UnavailableError)


def test_a_lost_device_comes_back_and_its_requests_are_answered(lab: Lab, fleets: list[Fleet]) -> None:
    lab.fail_next("cuda:0", DeviceFaultError("an illegal memory access"))
    fleets.append(fleet := Fleet(lab, "cuda:0", restarts=Restarts(first_s=0.0)).open())
    lab.opening.clear()
    running = fleet.submit(1.0)
    wait_until(lambda: len(fleet.changes) == 1)
    waiting = fleet.submit(2.0)
    assert not fleet.inbox.completions
    lab.opening.set()
    fleet.inbox.wait(2)
    assert all(isinstance(fleet.inbox.of(request).outcome, Answer) for request in (running, waiting))
    wait_until(lambda: len(fleet.changes) == 2)
    assert fleet.changes == [("cuda:0", "an illegal memory access"), ("cuda:0", None)]
    assert fleet.runners[0].restarts == 1
    assert lab.closed == ["cuda:0"]


def test_a_device_that_is_lost_while_it_is_idle_is_opened_again_at_once(lab: Lab, fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(lab, "cuda:0", restarts=Restarts(first_s=0.0)).open())
    lab.on_loss["cuda:0"]()
    wait_until(lambda: len(fleet.changes) == 2)
    assert fleet.changes[1] == ("cuda:0", None)
    assert lab.closed == ["cuda:0"]
    request = fleet.submit(1.0)
    fleet.inbox.wait(1)
    assert isinstance(fleet.inbox.of(request).outcome, Answer)


def test_a_device_that_is_lost_again_and_again_stays_out_of_service(lab: Lab, fleets: list[Fleet]) -> None:
    for _ in range(3):
        lab.fail_next("cuda:0", DeviceFaultError("gone"))
    fleets.append(fleet := Fleet(lab, "cuda:0", restarts=Restarts(limit=2, first_s=0.0)).open())
    for count in range(1, 3):  # the first is tried twice
        request = fleet.submit(1.0)
        fleet.inbox.wait(count)
        assert isinstance(fleet.inbox.of(request).outcome, DeviceLostError)
    assert fleet.runners[0].join(PATIENCE_S)
    assert not fleet.scheduler.healthy_devices
    assert [reason for _, reason in fleet.changes] == ["gone", None, "gone", None, "gone"]


def test_a_device_that_comes_back_with_less_room_is_not_used_and_what_waits_for_it_is_told_so(
    lab: Lab, fleets: list[Fleet]
) -> None:
    lab.fail_next("cuda:0", DeviceFaultError("gone"))
    fleets.append(fleet := Fleet(lab, "cuda:0", restarts=Restarts(limit=1, first_s=0.0)).open())
    lab.shrink("cuda:0", 4)
    request = fleet.submit(1.0)
    fleet.inbox.wait(1)
    outcome = fleet.inbox.of(request).outcome
    assert isinstance(outcome, UnavailableError)
    assert "no room any more" in str(outcome)
    assert fleet.runners[0].join(PATIENCE_S)
    assert not fleet.scheduler.healthy_devices
