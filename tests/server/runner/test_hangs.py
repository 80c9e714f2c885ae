"""Devices that hang: a batch does not end, and no error comes."""

from __future__ import annotations

import pytest
from dnnserve.engine.watchdog import Watchdog
from dnnserve.envelope import Answer
from dnnserve.processes.restarts import Restarts

from tests.server.fakes import Lab, wait_until
from tests.server.runner.fleet import Fleet


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
