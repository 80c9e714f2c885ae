"""Batches for which a device has no memory."""

from __future__ import annotations

import pytest
from dnnserve.engine import runner as runner_module
from dnnserve.engine.runner import Runner
from dnnserve.envelope import Answer
from dnnserve.errors import DeviceMemoryError
from dnnserve.processes.restarts import Restarts

from dnncore.errors import OutOfMemoryError
from tests.server.fakes import PATIENCE_S, Lab, outputs_of, wait_until
from tests.server.runner.fleet import SPEC, Fleet


def test_a_batch_for_which_there_is_no_memory_is_tried_again_once_and_the_device_goes_on(
    lab: Lab, fleets: list[Fleet]
) -> None:
    lab.fail_next("cpu", OutOfMemoryError("secret"))
    fleets.append(fleet := Fleet(lab, "cpu").open(hold_until_requests=2))
    repeated = [fleet.submit(1.0), fleet.submit(2.0)]
    fleet.inbox.wait(2)
    for request, value in zip(repeated, (1.0, 2.0), strict=True):
        assert isinstance(fleet.inbox.of(request).outcome, Answer)
        assert outputs_of(request)[0, 0] == value
    assert fleet.scheduler.repeats() == {SPEC.key: 2}
    for _ in range(2):
        lab.fail_next("cpu", OutOfMemoryError("secret"))
    failed = fleet.submit(3.0)
    fleet.inbox.wait(3)
    outcome = fleet.inbox.of(failed).outcome
    assert isinstance(outcome, DeviceMemoryError)
    assert "secret" not in str(outcome)
    good = fleet.submit(4.0)
    fleet.inbox.wait(4)
    assert isinstance(fleet.inbox.of(good).outcome, Answer)
    assert not fleet.changes


def test_a_batch_for_which_one_device_has_no_memory_is_answered_by_another(
    lab: Lab, fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_SHORTAGE_S", PATIENCE_S)
    monkeypatch.setattr(runner_module, "_LONGEST_SHORTAGE_S", PATIENCE_S)
    for device in ("cuda:0", "cuda:1"):
        lab.pause(device)
    fleets.append(fleet := Fleet(lab, "cuda:0", "cuda:1").open())
    lab.fail_next("cuda:0", OutOfMemoryError("full"))
    requests = [fleet.submit(value, 8) for value in (1.0, 2.0)]
    for device in ("cuda:0", "cuda:1"):
        lab.wait_running(device)
    lab.resume()
    fleet.inbox.wait(2)
    answers = [fleet.inbox.of(request).outcome for request in requests]
    assert all(isinstance(answer, Answer) and answer.device == "cuda:1" for answer in answers), answers
    assert fleet.scheduler.healthy_devices == {"cuda:0", "cuda:1"}


def test_a_device_that_never_has_memory_is_opened_again_where_it_can_be(
    lab: Lab, fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_SHORTAGE_S", 0.0)
    for _ in range(5):
        lab.fail_next("cuda:0", OutOfMemoryError("full"))
    fleets.append(fleet := Fleet(lab, "cuda:0", restarts=Restarts(first_s=0.0)).open())
    first = [fleet.submit(float(value), 8) for value in range(3)]
    wait_until(lambda: len(fleet.changes) == 2)
    (_, reason), (_, back) = fleet.changes
    assert reason is not None
    assert "no memory for 5 batches in a row" in reason
    assert back is None
    last = fleet.submit(7.0)
    fleet.inbox.wait(len(first) + 1)
    assert isinstance(fleet.inbox.of(last).outcome, Answer)


def test_a_device_without_memory_is_closed_before_it_counts_as_lost_and_its_batches_go_on(
    lab: Lab, fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    close, lose = runner_module.Runner._close, runner_module.Runner._lose

    def closes(runner: Runner) -> None:
        order.append("close")
        close(runner)

    def loses(runner: Runner, reason: str, back_ns: int | None) -> None:
        order.append("lose")
        lose(runner, reason, back_ns)

    monkeypatch.setattr(runner_module.Runner, "_close", closes)
    monkeypatch.setattr(runner_module.Runner, "_lose", loses)
    monkeypatch.setattr(runner_module, "_SHORTAGE_S", 0.0)
    for _ in range(5):
        lab.fail_next("cuda:0", OutOfMemoryError("full"))
    fleets.append(fleet := Fleet(lab, "cuda:0", restarts=Restarts(first_s=0.0)).open())
    for value in range(3):
        fleet.submit(float(value), 8)
    wait_until(lambda: len(fleet.changes) == 2)
    assert order[:2] == ["close", "lose"]


def test_a_device_that_has_had_no_memory_for_very_long_still_tries(
    lab: Lab, fleets: list[Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_SHORTAGE_S", 0.0)
    fleets.append(fleet := Fleet(lab, "cpu").open())
    fleet.runners[0]._shortages = 5000
    lab.fail_next("cpu", OutOfMemoryError("full"))
    request = fleet.submit(1.0)
    fleet.inbox.wait(1)
    assert isinstance(fleet.inbox.of(request).outcome, Answer)
