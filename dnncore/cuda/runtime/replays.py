"""Work that is enqueued again and again: one launch of a CUDA graph in place of one for each kernel, wherever addresses come again.

A training step asks an allocator for the same memory in the same order as the step before, and mostly gets it, so that an operation
meets one or two sets of addresses. A graph of many kernels costs the host about what a launch of one does.

    first, second and third time     launches, one by one
    behind the third                 a graph is made of them
    from then on                     a launch of that graph

What is launched is the same either way. Which graphs there are follows from the calls alone; nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dnncore.backend import Address, Bound, BoundGraph, Enqueue, Stream
from dnncore.cuda.calls import Calls, WhereAligned
from dnncore.errors import OutOfMemoryError

__all__ = ["LEAST_LAUNCHES", "Replays", "launches_of"]

LEAST_LAUNCHES = 8
"""Of work that is worth a graph: each begins a few microseconds later on the GPU than a kernel behind a kernel does."""

_SIGHTINGS = 3
"""Of a set of addresses before a graph is made, which costs the host as much as some ten times the launches: an address may come
again by chance, but three times it does in a cycle.
"""

_MOST_GRAPHS = 256
"""Of a device as one thread sees it: a fused ResNet-50 has 57, and each takes the driver some kilobytes a kernel."""

_IDLE_CALLS = 16 * _MOST_GRAPHS
"""After so many calls without it a graph makes room for another. One that is used keeps its place: were graphs to take turns, each
would be made again for every few launches.
"""

_MOST_SIGHTED = 1 << 14
"""Sets of addresses whose sightings are counted: those that never come again are forgotten, the oldest first."""


class _Replay:
    """A graph, and when it was launched last, in calls. Mutable."""

    __slots__ = ("graph", "last")

    def __init__(self, graph: BoundGraph, last: int) -> None:
        self.graph, self.last = graph, last


def launches_of(calls: Calls) -> int:
    """How many launches calls come to where every operand is aligned."""
    return sum(launches_of(call.aligned) if isinstance(call, WhereAligned) else 1 for call in calls)


class Replays:
    """Graphs of work that came again. Owned by one thread, that of the work.

    Args:
        capture: Makes a graph, which whoever made it closes in the end.
    """

    def __init__(self, capture: Callable[[Sequence[Bound]], BoundGraph]) -> None:
        self._capture = capture
        self._num_wired = 0
        self._num_calls = 0
        self._graphs: dict[tuple[Any, ...], _Replay] = {}
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
        number, graphs = self._num_wired, self._graphs
        self._num_wired += 1

        def launch(addresses: Sequence[Address]) -> None:
            if unless():
                enqueue(addresses)
                return
            self._num_calls = now = self._num_calls + 1
            key = (number, *addresses)
            found = graphs.get(key)
            if found is not None:
                found.last = now
                found.graph.launch(stream)
                return
            enqueue(addresses)
            if self._is_worth_it(key):
                self._make(key, calls)

        return launch

    def _is_worth_it(self, key: tuple[Any, ...]) -> bool:
        """Count a set of addresses; whether it comes again often enough."""
        sighted, digest = self._sighted, hash(key)  # of two with the same one, one gets its graph too early
        times = sighted.pop(digest, 0) + 1
        if times >= _SIGHTINGS:
            return True
        if len(sighted) >= _MOST_SIGHTED:
            del sighted[next(iter(sighted))]
        sighted[digest] = times
        return False

    def _make(self, key: tuple[Any, ...], calls: Calls) -> None:
        """Make a graph, where there is room: without one, its calls are launched as before."""
        if not self._has_room or (len(self._graphs) >= _MOST_GRAPHS and not self._made_room()):
            return
        try:
            graph = self._capture([Bound(calls, 1.0, 0.0, key[1:])])
        except OutOfMemoryError:  # the allocator of the work's tensors has taken all: it needs the memory more
            self._has_room = False
            return
        self._graphs[key] = _Replay(graph, self._num_calls)

    def _made_room(self) -> bool:
        key, oldest = min(self._graphs.items(), key=_last)
        if self._num_calls - oldest.last < _IDLE_CALLS:
            return False
        del self._graphs[key]
        oldest.graph.close()
        return True


def _last(item: tuple[tuple[Any, ...], _Replay]) -> int:
    return item[1].last
