"""PyTorch's side of a race: how often cuDNN searches, what is kept, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from benchmarks.race import Rotation
from benchmarks.torch_graphs import Rival, Search, fastest
from dnncore import Handle
from tests.benchmarks.fake_cuda import FakeCuda, calls_of

LAST = ("channels_last", "contiguous")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def rival(function: Callable[..., Any], sets: int = 3) -> Rival:
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(1, 4, 5, 5, generator=generator).to(memory_format=torch.channels_last) for _ in range(sets)]
    return Rival(function, lambda _inputs: (), [[one] for one in x], Rotation(sets, 2), Rotation(1, 4))


def right(_result: torch.Tensor) -> bool:
    return True


def run(
    one: Rival, formats: Sequence[str], search: Search | None, is_right: Callable[[torch.Tensor], bool] = right
) -> Any:
    with Handle("cpu") as handle:
        return fastest(one, formats, search, handle.record_event, is_right)


def test_every_search_is_in_a_thread_of_its_own_and_the_best_two_are_kept(cuda: FakeCuda) -> None:
    kept, heats, problems = run(rival(calls_of(cuda, torch.relu)), LAST, Search(times=2))
    names = ["channels_last, search 1 of 10", "channels_last, search 2 of 10", "contiguous, search 1 of 10"]
    assert [name for name, _ in dict.fromkeys(cuda.searches)] == names
    assert set(heats) == {"channels_last", "contiguous", *names}
    assert [one.name for one in kept] == sorted(heats, key=lambda name: heats[name])[:2]
    assert problems == []


def test_graphs_go_through_the_sets_and_the_warm_one_stays_with_the_first(cuda: FakeCuda) -> None:
    seen: list[float] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.sum()))
        return x * 2

    one = rival(calls_of(cuda, function), sets=3)
    (captured, *_), *_ = run(one, (), None)
    assert (captured.cold.calls, captured.warm.calls) == (6, 4)
    seen.clear()
    captured.cold.enqueue()
    assert len(set(seen)) == 3
    assert seen == [*seen[:3], *seen[:3]]
    first = seen[0]
    seen.clear()
    captured.warm.enqueue()
    assert seen == [first] * 4


def test_other_formats_are_converted_outside_of_what_is_timed(cuda: FakeCuda) -> None:
    strides: set[tuple[int, ...]] = set()

    def function(x: torch.Tensor) -> torch.Tensor:
        strides.add(x.stride())
        return x * 2

    run(rival(calls_of(cuda, function)), LAST, None)
    assert strides == {(100, 1, 20, 4), (100, 25, 5, 1)}


def test_where_calls_are_long_few_of_cudnns_algorithms_are_tried_first(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.torch_graphs._SLOWNESS", 1e9)  # so that any call is long
    run(rival(calls_of(cuda, torch.relu)), LAST[:1], Search(times=2, seconds=1000))
    assert [limit for _, limit in dict.fromkeys(cuda.searches)] == [2, 4, 10, 10]


def test_no_more_is_tried_once_a_search_has_been_slow(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.torch_graphs._SLOWNESS", 1e9)
    kept, _, problems = run(rival(calls_of(cuda, torch.relu)), LAST[:1], Search(times=2, seconds=1e-9))
    assert [limit for _, limit in dict.fromkeys(cuda.searches)] == [2]
    assert "2 of cuDNN's algorithms took" in problems[0]
    assert len(kept) == 2


def test_a_way_that_fails_is_said_and_the_others_go_on(cuda: FakeCuda) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.is_contiguous():
            raise RuntimeError("no engine\nand many lines")
        return torch.relu(x)

    kept, heats, problems = run(rival(calls_of(cuda, function)), LAST, Search(times=1))
    assert problems == ["contiguous: no engine"]
    assert len(kept) == len(heats) == 2


def test_a_wrong_result_is_not_raced_unless_there_is_no_other_way(cuda: FakeCuda) -> None:
    function = calls_of(cuda, torch.relu)
    kept, _, problems = run(rival(function), LAST[:1], Search(times=1), lambda _result: False)
    assert kept == []
    assert problems == ["channels_last: its result is wrong", "channels_last, search 1 of 10: its result is wrong"]
    kept, _, problems = run(rival(function), (), None, lambda _result: False)
    assert [one.name for one in kept] == ["as it is"]
    assert problems == ["as it is: its result is wrong"]
