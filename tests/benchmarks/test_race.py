"""The timing core: how many buffers there are, who goes when, and what counts."""

from __future__ import annotations

import pytest

from benchmarks.race import Replay, Rotation, race

CACHE = 60 << 20


@pytest.mark.parametrize("nbytes", [300_000, 1_400_000, 60_000_000, 4_000_000_000])
def test_sets_together_are_several_times_the_cache(nbytes: int) -> None:
    rotation = Rotation.cold(nbytes, CACHE, 1e-5)
    assert rotation.sets >= 2
    assert rotation.sets * nbytes >= 4 * CACHE
    assert rotation.calls % rotation.sets == 0


def test_the_fewest_bytes_get_the_most_sets_that_there_are() -> None:
    assert Rotation.cold(1, CACHE, 1e-6).sets == Rotation.cold(1000, CACHE, 1e-6).sets == 1024


def test_a_graph_of_short_calls_is_long_and_one_of_long_calls_goes_through_the_sets_once() -> None:
    short, long = Rotation.warm(3e-6), Rotation.warm(0.1)
    assert short.calls * 3e-6 == pytest.approx(2e-3, rel=0.01)
    assert Rotation.cold(10**9, CACHE, 1e-4).calls >= 12
    assert (long.sets, long.calls) == (1, 1)
    assert Rotation.cold(10**9, CACHE, 0.1).passes == 1


class Clock:
    """A stream whose work takes as long as it is told; its events say when they passed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def mark(self) -> Moment:
        return Moment(self.now)

    def replay(self, name: str, *times: float, calls: int = 1) -> Replay:
        left = list(times)

        def enqueue() -> None:
            self.order.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return Replay(enqueue, calls)


class Moment:
    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_ms(self, since: object) -> float:
        assert isinstance(since, Moment)
        return self.at - since.at


def test_contestants_take_turns_and_the_median_of_a_call_counts() -> None:
    clock = Clock()
    found = race(
        {
            "ours": clock.replay("ours", 100, 8, 8, 80, calls=4),
            "theirs": clock.replay("theirs", 1000, 30, 33, 36, calls=3),
        },
        clock.mark,
        rounds=3,
    )
    assert clock.order == ["ours", "theirs"] * 4  # the first of each warms up, and does not count
    assert found["ours"].ms == 2
    assert found["theirs"].ms == 11
    assert found["theirs"].spread == pytest.approx(1 / 11)


def test_slow_calls_are_measured_in_few_rounds_and_quick_ones_in_many() -> None:
    rounds = {}
    for ms in (1.0, 40.0, 900.0):
        clock = Clock()
        race({"ours": clock.replay("ours", ms)}, clock.mark)
        rounds[ms] = len(clock.order) - 1
    assert rounds == {1.0: 31, 40.0: 10, 900.0: 7}
