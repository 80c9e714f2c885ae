from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from dnnserve.engine import runner as runner_module
from dnnserve.engine.buckets import batch_buckets
from dnnserve.engine.runner import Runner
from dnnserve.engine.watchdog import Watchdog
from dnnserve.envelope import Answer, InferenceRequest, ModelKey
from dnnserve.errors import DeviceLostError, DeviceMemoryError, ExecutionError, UnavailableError
from dnnserve.processes.restarts import Restarts
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits

from dnncore.errors import DeviceFaultError, OutOfMemoryError
from tests.server.fakes import PATIENCE_S, Inbox, Lab, block_of, make_rows, make_spec, outputs_of, wait_until

SPEC = make_spec()


class Fleet:
    """Runners over a lab's fake devices, behind one scheduler."""

    def __init__(self, lab: Lab, *devices: str, restarts: Restarts | None = None) -> None:
        self.inbox, self.scheduler = Inbox(), Scheduler()
        self.changes: list[tuple[str, str | None]] = []
        models = {SPEC.key: SPEC.max_batch_rows}
        self.runners = [
            Runner(
                *(device, device, models, lab.open_host, self.scheduler),
                on_change=lambda *change: self.changes.append(change),
                restarts=restarts,
            )
            for device in devices
        ]
        self.scheduler.start()
        for runner in self.runners:
            runner.start()

    def open(self, **limits: int) -> Fleet:
        for runner in self.runners:
            runner.wait_loaded()
        self.scheduler.add_model(SPEC.key, Limits(**{"max_batch_rows": 8, "max_queue_requests": 100, **limits}))
        return self

    def submit(self, value: float, rows: int = 1, model: ModelKey = SPEC.key) -> InferenceRequest:
        request = InferenceRequest(
            model, block_of(make_rows(value, rows)), self.scheduler._clock(), None, self.inbox.deliver
        )
        self.scheduler.submit(request)
        return request

    def close(self) -> None:
        self.scheduler.stop()
        assert all(runner.join(PATIENCE_S) for runner in self.runners)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def fleets() -> Iterator[list[Fleet]]:
    fleets: list[Fleet] = []
    yield fleets
    for fleet in fleets:
        fleet.close()


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


NEXT = ModelKey("toy", 2)


class Ends:
    """How loads and unloads ended."""

    def __init__(self) -> None:
        self.seen: list[int | Exception | None] = []

    def __call__(self, end: int | Exception | None = None) -> None:
        self.seen.append(end)


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
