"""Work that is enqueued again and again: one launch of a CUDA graph in place of one for each kernel, wherever addresses come again.

A training step asks an allocator for the same memory in the same order as the step before, and mostly gets it: all of it, so that
an operation meets a few sets of addresses in turn, or all but some small tensors. A graph of many kernels costs the host about what
a launch of one does; to give a kernel of a graph other parameters takes a little longer than to launch it.

    the third call with the same addresses, or nearly     launched one by one; then a graph is made of it
    a call with the addresses of a graph                  a launch of that graph
    with nearly those of one                              kernels that they touch get the others, and a launch of that graph
    any other                                             launched one by one

What is launched is the same either way. Which graphs there are follows from the calls alone; nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from dnncore.backend import Address, Bound, Enqueue, Stream
from dnncore.cuda.calls import Call, Calls, Copy, KernelCall, Memset, Place, WhereAligned
from dnncore.errors import OutOfMemoryError

__all__ = ["LEAST_LAUNCHES", "Replayable", "Replays", "launches_of"]

LEAST_LAUNCHES = 8
"""Of work that is worth a graph: each begins a few microseconds later on the GPU than a kernel behind a kernel does."""

_SIGHTINGS = 3
"""Of addresses before a graph is made, which costs the host as much as some ten times the launches."""

_NEARLY = 4
"""Addresses are nearly the same where those that differ touch no more than one of so many launches."""

_MOST_GRAPHS = 256
"""Of a device as one thread sees it: a fused ResNet-50 has 57, and each takes the driver some kilobytes a kernel."""

_MOST_COMPARED = 4
"""Graphs of one work, and calls of it, among which nearly the same addresses are looked for, the last ones."""

_IDLE_CALLS = 16 * _MOST_GRAPHS
"""After so many calls without it a graph makes room for another. One that is used keeps its place: were graphs to take turns, each
would be made again for every few launches.
"""

_MOST_SIGHTED = 1 << 14
"""Sets of addresses whose sightings are counted: those that never come again are forgotten, the oldest first."""


class Replayable(Protocol):
    """A graph of bound work. Owned by one thread."""

    def launch(self, stream: Stream) -> None:
        """Enqueue all of it."""
        ...

    def rebind(self, steps: Iterable[int], addresses: Sequence[Address]) -> None:
        """Let the launches from now on have these addresses at some of the steps."""
        ...

    def close(self) -> None:
        """Give it back, once the launches have run."""
        ...


_Key = tuple[Any, ...]
"""The number of a work, and addresses."""


def launches_of(calls: Calls) -> int:
    """How many launches calls come to where every operand is aligned."""
    return sum(launches_of(call.aligned) if isinstance(call, WhereAligned) else 1 for call in calls)


def _places_of(call: Call) -> list[Place]:
    """Whatever a call reads, writes or is decided by."""
    if isinstance(call, KernelCall):
        return [*(slot.place for slot in call.slots), *(slot.place for slot in call.maps)]
    if isinstance(call, Memset):
        return [call.place]
    if isinstance(call, Copy):
        return [call.destination, call.source]
    alignments = [place for place, _ in call.alignments]
    return [*alignments, *(place for each in (*call.aligned, *call.otherwise) for place in _places_of(each))]


class _Work:
    """Calls that are wired, and what came of them. Mutable.

    Attributes:
        number: Of this work.
        calls: What runs.
        replays: Its graphs, the oldest first.
    """

    def __init__(self, number: int, calls: Calls) -> None:
        self.number, self.calls = number, calls
        self.replays: list[_Replay] = []
        self._most_touched = launches_of(calls) // _NEARLY
        touching: dict[int, set[int]] = {}
        for index, call in enumerate(calls):
            for place in _places_of(call):
                touching.setdefault(place.operand, set()).add(index)
        # What touches most comes first: addresses that are not nearly the same mostly differ there.
        self._touching = sorted(touching.items(), key=lambda item: -len(item[1]))
        self._met: list[tuple[Sequence[Address], int]] = []

    def touched(self, old: Sequence[Address], new: Sequence[Address]) -> set[int] | None:
        """The calls that addresses touch which differ; None where these are many."""
        touched: set[int] = set()
        for operand, by in self._touching:
            if old[operand] != new[operand]:  # WORKSPACE is the last one
                touched |= by
                if len(touched) > self._most_touched:
                    return None
        return touched

    def nearest(self, addresses: Sequence[Address]) -> tuple[_Replay, set[int]] | None:
        """The graph of nearly these addresses that the fewest calls have to be changed of, and which."""
        found: tuple[_Replay, set[int]] | None = None
        for replay in self.replays[-_MOST_COMPARED:]:
            touched = self.touched(replay.addresses, addresses)
            if touched is not None and (found is None or len(touched) < len(found[1])):
                found = replay, touched
        return found

    def has_met(self, addresses: Sequence[Address]) -> bool:
        """Note the addresses of a call that was launched; whether there have been enough with nearly the same each before."""
        times = 1
        for met in self._met:
            if self.touched(met[0], addresses) is not None:
                self._met.remove(met)
                times += met[1]
                break
        if times >= _SIGHTINGS:
            return True
        self._met = [*self._met, (addresses, times)][-_MOST_COMPARED:]
        return False


class _Replay:
    """A graph. Mutable.

    Attributes:
        work: Whose it is.
        graph: Itself.
        addresses: That it has now.
        last: When it was launched last, in calls.
    """

    __slots__ = ("addresses", "graph", "last", "work")

    def __init__(self, work: _Work, graph: Replayable, addresses: Sequence[Address], last: int) -> None:
        self.work, self.graph, self.addresses, self.last = work, graph, addresses, last

    @property
    def key(self) -> _Key:
        return (self.work.number, *self.addresses)


class Replays:
    """Graphs of work that came again. Owned by one thread, that of the work.

    Args:
        capture: Makes a graph, which whoever made it closes in the end.
    """

    def __init__(self, capture: Callable[[Sequence[Bound]], Replayable]) -> None:
        self._capture = capture
        self._num_wired = 0
        self._num_calls = 0
        self._replays: dict[_Key, _Replay] = {}
        self._sighted: dict[int, int] = {}
        self._has_room = True

    def wired(self, calls: Calls, enqueue: Enqueue, stream: Stream, unless: Callable[[], bool]) -> Enqueue:
        """What enqueues calls by a graph where it can.

        Args:
            calls: What runs, their factors fixed (`calls.rewired`).
            enqueue: Launches them one by one.
            stream: Where.
            unless: Asked at each call whether they are to be launched one by one all the same, as while a stream is captured.
        """
        if launches_of(calls) < LEAST_LAUNCHES:
            return enqueue
        work, number, replays = _Work(self._num_wired, calls), self._num_wired, self._replays
        self._num_wired += 1

        def launch(addresses: Sequence[Address]) -> None:
            if unless():
                enqueue(addresses)
                return
            self._num_calls = now = self._num_calls + 1
            replay = replays.get((number, *addresses))
            if replay is None:
                addresses = tuple(addresses)
                is_worth_it = self._is_worth_it((number, *addresses))
                replay = None if is_worth_it else self._rebound(work, addresses)
                if replay is None:
                    enqueue(addresses)
                    if work.has_met(addresses) or is_worth_it:
                        self._make(work, addresses)
                    return
            replay.last = now
            replay.graph.launch(stream)

        return launch

    def _is_worth_it(self, key: _Key) -> bool:
        """Count a set of addresses; whether it comes again often enough."""
        sighted, digest = self._sighted, hash(key)  # of two with the same one, one gets its graph too early
        times = sighted.pop(digest, 0) + 1
        if times >= _SIGHTINGS:
            return True
        if len(sighted) >= _MOST_SIGHTED:
            del sighted[next(iter(sighted))]
        sighted[digest] = times
        return False

    def _rebound(self, work: _Work, addresses: Sequence[Address]) -> _Replay | None:
        """A graph of nearly these addresses, which has them now."""
        nearest = work.nearest(addresses)
        if nearest is None:
            return None
        replay, touched = nearest
        del self._replays[replay.key]
        work.replays.remove(replay)
        replay.graph.rebind(sorted(touched), addresses)
        replay.addresses = addresses
        self._add(replay)
        return replay

    def _add(self, replay: _Replay) -> None:
        self._replays[replay.key] = replay
        replay.work.replays.append(replay)

    def _make(self, work: _Work, addresses: Sequence[Address]) -> None:
        """Make a graph, where there is room: without one, its calls are launched as before."""
        if not self._has_room or (len(self._replays) >= _MOST_GRAPHS and not self._made_room()):
            return
        try:
            graph = self._capture([Bound((call,), 1.0, 0.0, addresses) for call in work.calls])
        except OutOfMemoryError:  # the allocator of the work's tensors has taken all: it needs the memory more
            self._has_room = False
            return
        self._add(_Replay(work, graph, addresses, self._num_calls))

    def _made_room(self) -> bool:
        oldest = min(self._replays.values(), key=lambda replay: replay.last)
        if self._num_calls - oldest.last < _IDLE_CALLS:
            return False
        del self._replays[oldest.key]
        oldest.work.replays.remove(oldest)
        oldest.graph.close()
        return True
