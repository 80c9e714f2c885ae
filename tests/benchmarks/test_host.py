"""`benchmarks.host` sets the goals that there are, and says of each whether it is met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.host import layers, nets, operations, parts
from benchmarks.host.__main__ import verdict
from benchmarks.host.row import Row
from dnncore import Handle

_Calls = Sequence[Callable[[], Any]]


@pytest.mark.parametrize(
    ("row", "is_met"),
    [
        (Row("no goal", 9.0, "us", 1.0), None),
        (Row("at most", 12.0, "us", most=12), True),
        (Row("above", 12.1, "us", 30.0, most=12), False),
        (Row("below PyTorch's", 14.0, "us", 14.1, most=15, below_torch=True), True),
        (Row("as long as PyTorch's", 14.0, "us", 14.0, most=15, below_torch=True), False),
        (Row("below PyTorch's, and too long", 16.0, "us", 20.0, most=15, below_torch=True), False),
    ],
    ids=lambda value: value.name if isinstance(value, Row) else str(value),
)
def test_a_goal_is_met_by_no_more_than_that_and_by_less_than_pytorchs(row: Row, is_met: bool | None) -> None:
    assert row.is_met is is_met
    assert ("MISSED" in str(row)) == (is_met is False)


def test_rows_that_miss_their_goals_are_named_in_the_end() -> None:
    rows = [Row("slow", 2.0, "ms", most=1), Row("quick", 1.0, "ms", most=1), Row("anything", 7.0, "ms")]
    count, *missed = verdict(rows).splitlines()
    assert count == "1 of 2 rows with a goal meet it"
    (line,) = missed
    assert line.split()[0] == "slow"


def _each_once(contestants: _Calls, _synchronize: object) -> list[float]:
    for call in contestants:
        call()
    return [float(number) for number in range(1, len(contestants) + 1)]


def test_converted_convolutions_norms_and_relus_are_to_be_quicker_than_pytorchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "host_us_beside", _each_once)
    rows = {row.name: row for row in layers.rows("cpu")}
    assert len(rows) == 14
    for name, row in rows.items():
        has_goal = any(kind in name for kind in ("convolution", "batch norm", "ReLU"))
        most = 35 if name.endswith(", with gradient") else 15
        assert (row.most, row.below_torch) == ((most, True) if has_goal else (None, False)), name


def test_every_training_step_is_to_take_the_host_less_than_its_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (lambda: None), (lambda: None)
    monkeypatch.setattr(nets, "wall_ms", lambda *_: [9.0, 10.0])
    monkeypatch.setattr(nets, "kernel_ms", lambda step: 7.0 if step is ours else 8.0)
    monkeypatch.setattr(nets, "enqueue_ms", lambda step: 7.5 if step is ours else 6.0)
    steps = [nets.Contest(name, lambda: (ours, theirs), has_goal=name == "step") for name in ("step", "other")]
    wholes = list(nets.rows(steps))
    host, kernels, other_host = wholes[2:5]
    assert [(row.name, row.ours, row.torch, row.is_met) for row in wholes[:2]] == [
        ("step", 9.0, 10.0, None),
        ("other", 9.0, 10.0, None),
    ]
    assert (host.name, host.ours, host.torch, host.most, host.is_met) == ("step: host", 7.5, 6.0, 7.0, False)
    assert (kernels.ours, kernels.torch, kernels.is_met) == (7.0, 8.0, None)
    assert (other_host.name, other_host.most) == ("other: host", None)


def test_nothing_is_timed_once_the_profiler_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(name: str, found: object) -> Callable[..., object]:
        def timed(*_: object) -> object:
            done.append(name)
            return found

        return timed

    monkeypatch.setattr(nets, "wall_ms", noted("wall", [1.0, 2.0]))
    monkeypatch.setattr(nets, "enqueue_ms", noted("host", 1.0))
    monkeypatch.setattr(nets, "kernel_ms", noted("kernels", 1.0))
    nothing = (lambda: None), (lambda: None)
    contests = [nets.Contest("step", lambda: nothing), nets.Contest("net", lambda: nothing, is_step=False)]
    assert len(list(nets.rows(contests))) == 5
    assert done == ["wall", "host", "host", "wall", *["kernels"] * 4]


def test_a_replay_has_the_same_goal_whatever_its_length(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def once(call: Callable[[], Any], synchronize: Callable[[], Any], calls: int) -> float:
        asked.append(calls)
        call()
        synchronize()
        return 6.0

    monkeypatch.setattr(operations, "host_us", once)
    replay, by_steps, moved = operations.replays(handle, 3)
    assert (replay.name, replay.ours, replay.most) == ("replay of 3 launches", 6.0, 12)
    assert (by_steps.ours, by_steps.most, moved.most) == (2.0, None, None)
    assert asked == [200, 20, 200]


def test_parts_of_a_call_are_added_up_beside_the_whole_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "host_us_beside", lambda *_: [0.5, 10.5, 2.5, 3.5])
    rows = parts.parts_and_whole("call", {"one": lambda: None, "two": lambda: None}, lambda: None, lambda: None)
    assert [(row.name, row.ours) for row in rows] == [
        ("part: one", 2.0),
        ("part: two", 3.0),
        ("parts together", 5.0),
        ("parts and what is between them: call", 10.0),
        ("between the parts", 5.0),
    ]
