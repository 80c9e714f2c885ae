"""Models that come to a device and go while it runs others."""

from __future__ import annotations

import pytest
from dnnserve.envelope import Answer, ModelKey
from dnnserve.errors import DeviceLostError, UnavailableError
from dnnserve.processes.restarts import Restarts
from dnnserve.scheduling.entry import Limits

from dnncore.errors import DeviceFaultError, OutOfMemoryError
from tests.server.fakes import Lab, wait_until
from tests.server.runner.fleet import NEXT, SPEC, Ends, Fleet


def test_a_model_is_loaded_while_others_run_and_its_batches_are_taken_then(lab: Lab, fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(lab, "cpu").open())
    (runner,), ends = fleet.runners, Ends()
    lab.pause("loading")
    runner.load(NEXT, 8, ends)
    for value in (1.0, 2.0):
        fleet.submit(value)
    fleet.inbox.wait(2)
    assert not ends.seen
    fleet.scheduler.add_model(NEXT, Limits(8, 100))
    assert isinstance(fleet.inbox.of(fleet.submit(3.0, model=NEXT)).outcome, UnavailableError)
    lab.resume()
    wait_until(lambda: ends.seen == [8])
    request = fleet.submit(4.0, model=NEXT)
    fleet.inbox.wait(4)
    assert isinstance(fleet.inbox.of(request).outcome, Answer)
    runner.unload(SPEC.key, ends)
    wait_until(lambda: len(ends.seen) == 2)
    assert lab.unloaded == [("cpu", SPEC.key)]
    assert isinstance(fleet.inbox.of(fleet.submit(5.0)).outcome, UnavailableError)


@pytest.mark.parametrize(
    "error", [DeviceFaultError("gone"), RuntimeError("odd")], ids=lambda error: type(error).__name__
)
def test_an_unload_ends_whatever_the_device_says(lab: Lab, fleets: list[Fleet], error: Exception) -> None:
    fleets.append(fleet := Fleet(lab, "cpu").open())
    lab.unload_error = error
    fleet.runners[0].unload(SPEC.key, ends := Ends())
    wait_until(lambda: ends.seen == [None])
    lost = isinstance(error, DeviceFaultError)
    wait_until(lambda: ("cpu" in fleet.scheduler.healthy_devices) != lost)


def test_a_load_that_fails_says_why_and_nothing_else_notices(lab: Lab, fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(lab, "cpu").open())
    ends, lab.load_error = Ends(), OutOfMemoryError("no room")
    fleet.runners[0].load(NEXT, 8, ends)
    wait_until(lambda: ends.seen == [lab.load_error])
    fleet.submit(1.0)
    fleet.inbox.wait(1)
    assert not fleet.changes


def test_a_device_that_comes_back_has_the_models_that_came_meanwhile_and_not_those_that_went(
    lab: Lab, fleets: list[Fleet]
) -> None:
    fleets.append(fleet := Fleet(lab, "cpu", restarts=Restarts(first_s=0.01)).open())
    (runner,), ends = fleet.runners, Ends()
    lab.pause("loading")
    runner.load(ModelKey("toy", 9), 8, ends)
    lab.opening.clear()
    lab.fail_next("cpu", DeviceFaultError("gone"))
    left_alone = fleet.submit(1.0)
    wait_until(lambda: len(ends.seen) == 1)
    assert isinstance(ends.seen[0], DeviceLostError)
    wait_until(lambda: not runner.in_service)
    runner.load(NEXT, 8, ends)
    runner.unload(SPEC.key, ends)
    assert ends.seen[1:] == [None, None]
    lab.loads.clear()
    lab.opening.set()
    lab.resume()
    wait_until(lambda: bool(lab.loads))
    assert lab.loads == [("cpu", NEXT)]
    fleet.scheduler.add_model(NEXT, Limits(8, 100))
    wait_until(lambda: "cpu" in fleet.scheduler.costs()[NEXT])
    request = fleet.submit(2.0, model=NEXT)
    fleet.inbox.wait(2)
    assert isinstance(fleet.inbox.of(request).outcome, Answer)
    assert isinstance(fleet.inbox.of(left_alone).outcome, UnavailableError)


def test_a_device_comes_back_without_a_model_that_came_meanwhile_and_has_no_room_there(
    lab: Lab, fleets: list[Fleet], caplog: pytest.LogCaptureFixture
) -> None:
    fleets.append(fleet := Fleet(lab, "cpu", restarts=Restarts(first_s=0.01)).open())
    (runner,), ends = fleet.runners, Ends()
    lab.opening.clear()
    lab.fail_next("cpu", DeviceFaultError("gone"))
    fleet.submit(1.0)
    wait_until(lambda: len(fleet.changes) == 1 and not runner.in_service)
    runner.load(NEXT, 16, ends)
    lab.shrink("cpu", 8)
    lab.opening.set()
    wait_until(lambda: "device cpu is back without model toy/2" in caplog.text)
    request = fleet.submit(2.0)
    fleet.inbox.wait(2)
    assert isinstance(fleet.inbox.of(request).outcome, Answer)


def test_a_load_that_is_given_up_brings_nothing(lab: Lab, fleets: list[Fleet]) -> None:
    fleets.append(fleet := Fleet(lab, "cpu").open())
    (runner,), loads, unloads = fleet.runners, Ends(), Ends()
    lab.pause("loading")
    runner.load(NEXT, 8, loads)
    runner.unload(NEXT, unloads)
    wait_until(lambda: unloads.seen == [None])
    lab.resume()
    fleet.submit(1.0)
    fleet.inbox.wait(1)
    fleet.scheduler.add_model(NEXT, Limits(8, 100))
    assert isinstance(fleet.inbox.of(fleet.submit(2.0, model=NEXT)).outcome, UnavailableError)
    assert loads.seen == []
