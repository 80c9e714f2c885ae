"""When work becomes a graph: by the calls alone, with graphs that only count."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dnncore.backend import Address, Bound, Enqueue, Move, Stream
from dnncore.cuda.calls import Calls, Memset, Place, WhereAligned
from dnncore.cuda.runtime import replays
from dnncore.cuda.runtime.replays import LEAST_LAUNCHES, Replays, launches_of
from dnncore.errors import OutOfMemoryError
from dnncore.reference.stream import ReferenceStream

ONE, OTHER = (0x100, 0x200), (0x100, 0x300)
STREAM = ReferenceStream()


def _calls(launches: int) -> Calls:
    return tuple(Memset(Place(0), value, 4) for value in range(launches))


class _Graph:
    def __init__(self, of: _Recorder, steps: Sequence[Bound]) -> None:
        (self.step,) = steps
        self._of = of
        self.is_closed = False

    def launch(self, stream: Stream) -> None:
        assert stream is STREAM
        assert not self.is_closed
        self._of.done.append("graph")

    def move(self, moves: Sequence[Move]) -> None:
        raise AssertionError(moves)

    def close(self) -> None:
        self.is_closed = True

    abandon = close


class _Recorder:
    """Wires work that only says how it was done.

    Attributes:
        done: For each call, how.
        graphs: That were made.
        is_captured: Whether somebody captures the stream now.
        is_full: Whether the device has no memory left.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.graphs: list[_Graph] = []
        self.is_captured = self.is_full = False
        self._replays = Replays(self._capture)

    def _capture(self, steps: Sequence[Bound]) -> _Graph:
        if self.is_full:
            raise OutOfMemoryError("full")
        self.graphs.append(_Graph(self, steps))
        return self.graphs[-1]

    def wired(self, launches: int = LEAST_LAUNCHES) -> Enqueue:
        def enqueue(_addresses: Sequence[Address]) -> None:
            self.done.append("launches")

        return self._replays.wired(_calls(launches), enqueue, STREAM, lambda: self.is_captured)

    def taken(self) -> list[str]:
        done, self.done = self.done, []
        return done


@pytest.fixture
def recorder() -> _Recorder:
    return _Recorder()


def test_the_fourth_call_with_the_same_addresses_is_a_graph(recorder: _Recorder) -> None:
    enqueue = recorder.wired()
    for _ in range(5):
        enqueue(list(ONE))
    assert recorder.taken() == ["launches", "launches", "launches", "graph", "graph"]
    (graph,) = recorder.graphs
    assert graph.step == Bound(_calls(LEAST_LAUNCHES), 1.0, 0.0, ONE)


def test_each_set_of_addresses_has_its_graph(recorder: _Recorder) -> None:
    enqueue = recorder.wired()
    for _ in range(3):
        enqueue(ONE)
        enqueue(OTHER)
    enqueue(ONE)
    enqueue(OTHER)
    enqueue((0x100, 0x400))
    assert recorder.taken() == ["launches"] * 6 + ["graph", "graph", "launches"]
    assert [graph.step.addresses for graph in recorder.graphs] == [ONE, OTHER]


def test_work_is_not_taken_for_other_work_at_the_same_addresses(recorder: _Recorder) -> None:
    first, second = recorder.wired(), recorder.wired()
    for _ in range(3):
        first(ONE)
    second(ONE)
    assert recorder.taken() == ["launches"] * 4


def test_few_launches_are_no_graph(recorder: _Recorder) -> None:
    enqueue = recorder.wired(LEAST_LAUNCHES - 1)
    for _ in range(9):
        enqueue(ONE)
    assert recorder.taken() == ["launches"] * 9


def test_what_is_captured_is_launched_and_not_counted(recorder: _Recorder) -> None:
    enqueue = recorder.wired()
    for captured in (False, False, True, True, False, True, False):
        recorder.is_captured = captured
        enqueue(ONE)
    assert recorder.taken() == ["launches"] * 6 + ["graph"]


def test_a_device_without_memory_has_work_launched_and_is_not_asked_again(recorder: _Recorder) -> None:
    enqueue = recorder.wired()
    recorder.is_full = True
    for _ in range(3):
        enqueue(ONE)
    recorder.is_full = False
    for _ in range(4):
        enqueue(OTHER)
        enqueue(ONE)
    assert set(recorder.taken()) == {"launches"}
    assert not recorder.graphs


def test_a_graph_that_nobody_launches_makes_room_and_others_stay(
    recorder: _Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "_MOST_GRAPHS", 2)
    monkeypatch.setattr(replays, "_IDLE_CALLS", 10)
    enqueue, (one, two, three) = recorder.wired(), ((0x100,), (0x200,), (0x300,))
    for addresses in (one, two, three):
        for _ in range(4):
            enqueue(addresses)
    assert recorder.taken() == (["launches"] * 3 + ["graph"]) * 2 + ["launches"] * 4
    for _ in range(6):  # the first has not been launched for so long that the third one takes its place
        enqueue(three)
    assert recorder.taken()[-1] == "graph"
    assert [graph.is_closed for graph in recorder.graphs] == [True, False, False]
    enqueue(two)
    enqueue(one)
    assert recorder.taken() == ["graph", "launches"]


def test_addresses_that_were_met_long_ago_are_forgotten(recorder: _Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "_MOST_SIGHTED", 4)
    enqueue = recorder.wired()
    for number in (0, 1, 2, 3, 4, 0, 4, 4, 4):
        enqueue((number,))
    assert recorder.taken() == ["launches"] * 8 + ["graph"]
    for _ in range(2):
        enqueue((0,))
    assert recorder.taken() == ["launches"] * 2  # the third and fourth time: the first was forgotten
    enqueue((0,))
    assert recorder.taken() == ["graph"]


def test_launches_are_counted_where_operands_are_aligned() -> None:
    both = WhereAligned(((Place(0), 16),), _calls(1), _calls(2))
    assert launches_of((*_calls(3), both)) == 4
