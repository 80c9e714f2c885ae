"""When work becomes a graph: by the calls alone, with graphs that only count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from dnncore.backend import Address, Bound, Enqueue, Stream
from dnncore.cuda.calls import WORKSPACE, Calls, Copy, KernelCall, Memset, Place, Slot, WhereAligned
from dnncore.cuda.runtime import replays
from dnncore.cuda.runtime.replays import LEAST_LAUNCHES, Replays, launches_of
from dnncore.cuda.unit import Unit
from dnncore.errors import OutOfMemoryError
from dnncore.reference.stream import ReferenceStream

SMALL, LARGE = 0, 1
"""Operands that one call of many touches, and all the others."""

ONE, NEARLY, OTHER = (0x100, 0x200), (0x180, 0x200), (0x100, 0x300)
STREAM = ReferenceStream()


def _calls(launches: int) -> Calls:
    return tuple(Memset(Place(LARGE if value else SMALL), value, 4) for value in range(launches))


class _Graph:
    def __init__(self, of: _Recorder, steps: Sequence[Bound]) -> None:
        self.steps = list(steps)
        self._of = of
        self.is_closed = False

    def launch(self, stream: Stream) -> None:
        assert stream is STREAM
        assert not self.is_closed
        self._of.done.append("graph")

    def rebind(self, steps: Iterable[int], addresses: Sequence[Address]) -> None:
        for index in steps:
            self.steps[index] = replace(self.steps[index], addresses=addresses)
            self._of.done.append(f"rebound {index}")

    def close(self) -> None:
        self.is_closed = True


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
    assert graph.steps == [Bound((call,), 1.0, 0.0, ONE) for call in _calls(LEAST_LAUNCHES)]


def test_each_set_of_addresses_has_its_graph(recorder: _Recorder) -> None:
    enqueue = recorder.wired()
    for _ in range(3):
        enqueue(ONE)
        enqueue(OTHER)
    enqueue(ONE)
    enqueue(OTHER)
    enqueue((0x100, 0x400))
    assert recorder.taken() == ["launches"] * 6 + ["graph", "graph", "launches"]
    assert [graph.steps[0].addresses for graph in recorder.graphs] == [ONE, OTHER]


def test_calls_that_nearly_the_same_addresses_touch_are_changed(recorder: _Recorder) -> None:
    enqueue = recorder.wired()
    for _ in range(3):
        enqueue(ONE)
    assert recorder.taken() == ["launches"] * 3
    for addresses in (NEARLY, NEARLY, ONE):
        enqueue(addresses)
    assert recorder.taken() == ["rebound 0", "graph", "graph", "rebound 0", "graph"]
    enqueue(OTHER)
    assert recorder.taken() == ["launches"]
    (graph,) = recorder.graphs
    assert [step.addresses for step in graph.steps] == [ONE] * LEAST_LAUNCHES


def test_what_comes_again_as_it_was_gets_a_graph_of_its_own_in_the_end(recorder: _Recorder) -> None:
    enqueue = recorder.wired()
    for _ in range(5):
        enqueue(ONE)
        enqueue(NEARLY)
    recorder.taken()
    enqueue(ONE)
    enqueue(NEARLY)
    assert recorder.taken() == ["graph", "graph"]
    assert len(recorder.graphs) == 2


def test_addresses_that_are_nearly_the_same_each_time_get_a_graph(recorder: _Recorder) -> None:
    """Of a small tensor that is somewhere else at every call, while large ones take turns."""
    enqueue = recorder.wired()
    for number in range(4):
        for large in (0x10000, 0x20000):
            enqueue((number, large))
    assert recorder.taken() == ["launches"] * 6 + ["rebound 0", "graph"] * 2
    assert len(recorder.graphs) == 2


def test_the_workspace_is_the_last_address() -> None:
    work = replays._Work(0, (*_calls(2 * LEAST_LAUNCHES), Copy(Place(WORKSPACE, 8), Place(SMALL), 4)))
    assert work.touched((1, 2, 3), (1, 2, 4)) == {2 * LEAST_LAUNCHES}
    assert work.touched((1, 2, 3), (7, 2, 4)) == {0, 2 * LEAST_LAUNCHES}
    assert work.touched((1, 2, 3), (1, 7, 3)) is None
    assert work.touched((1, 2, 3), (1, 2, 3)) == set()


def test_a_call_is_touched_by_whatever_it_reads_writes_or_goes_by() -> None:
    kernel = KernelCall(Unit("source", "entry"), (1, 1, 1), (1, 1, 1), b"", (Slot(0, Place(0)), Slot(8, Place(1, 4))))
    chosen = WhereAligned(((Place(2), 16),), (kernel,), (Copy(Place(3), Place(4), 4),))
    work = replays._Work(0, (chosen, *_calls(8)[1:], kernel, *_calls(8)[1:]))
    for operand, touched in ((0, {0, 8}), (2, {0}), (3, {0}), (4, {0})):
        addresses = [0] * 6
        addresses[operand] = 16
        assert work.touched([0] * 6, addresses) == touched


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
    enqueue, (one, two, three) = recorder.wired(), ((0, 0x100), (0, 0x200), (0, 0x300))
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
    monkeypatch.setattr(replays, "_MOST_COMPARED", 1)
    enqueue = recorder.wired()
    for number in (0, 1, 0, 1, 2, 3, 4, 5, 0, 1):  # without the four others the last two would be third ones
        enqueue((0, number))
    assert not recorder.graphs
    for number in (0, 1, 0, 1):
        enqueue((0, number))
    assert [graph.steps[0].addresses for graph in recorder.graphs] == [(0, 0), (0, 1)]
    assert recorder.taken() == ["launches"] * 14


def test_launches_are_counted_where_operands_are_aligned() -> None:
    both = WhereAligned(((Place(0), 16),), _calls(1), _calls(2))
    assert launches_of((*_calls(3), both)) == 4
