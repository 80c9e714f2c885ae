"""PyTorch's side of a race: its calls as CUDA graphs, with the fastest that cuDNN finds in several searches.

cuDNN's search is not repeatable, so there are several and the best counts, of images channels-last and not. PyTorch remembers what
it found per thread: a search in a new thread is a new one. One under way cannot be broken off, and some of cuDNN's algorithms take
a thousand times as long as its best (one layer's search was broken off after minutes); so where calls are long a search tries few
of them first, in cuDNN's own order, and more as long as that has been quick.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.comparison import release
from benchmarks.race import Replay, Rotation, race
from dnncore.backend import Event

__all__ = ["Captured", "Rival", "Search", "fastest"]

_ALGORITHMS = 10
"""That a search tries: PyTorch's default."""

_FIRST_LIMITS = (2, 4)
_SLOWNESS, _RUNS = 30, 4
"""How much slower than the first of cuDNN's algorithms one is that it tries all the same, and how often it runs each: assumed."""

_KEPT = 2
"""So many of PyTorch's graphs are raced, after a heat of all."""

_HEAT_ROUNDS = 3


@dataclass(frozen=True)
class Search:
    """How long to look for the fastest. Immutable.

    Args:
        times: Searches of images as ours have them; of others there is one.
        seconds: What one may take, as far as that can be foreseen.
    """

    times: int = 2
    seconds: float = 5.0


@dataclass(frozen=True)
class Captured:
    """Graphs of PyTorch's calls. Immutable.

    Args:
        name: How images lie, and which search it was.
        cold: Through all sets.
        warm: With the first alone.
        output: What the first call gave.
        seconds: What the first call took, with the search.
    """

    name: str
    cold: Replay
    warm: Replay
    output: torch.Tensor
    seconds: float


class Rival:
    """What PyTorch is to call, on all sets. Owned by one thread at a time.

    Args:
        function: Of inputs and what comes behind them.
        more: Makes of inputs what comes behind them.
        inputs: Of each set.
        cold: How a graph goes through the sets.
        warm: How one stays with the first.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        more: Callable[[Sequence[Any]], tuple[Any, ...]],
        inputs: Sequence[Sequence[torch.Tensor]],
        cold: Rotation,
        warm: Rotation,
    ) -> None:
        self._function, self._more, self._inputs = function, more, inputs
        self._cold, self._warm = cold, warm

    def lying(self, images: str) -> Rival:
        """With images that lie otherwise."""
        to = getattr(torch, "contiguous_format" if images == "contiguous" else images)

        def lies(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.contiguous(memory_format=to) if tensor.ndim == 4 else tensor

        inputs = [[lies(tensor) for tensor in one] for one in self._inputs]
        return Rival(self._function, self._more, inputs, self._cold, self._warm)

    def captured(self, name: str, limit: int | None = None) -> Captured:
        """Its graphs, made in a thread of their own.

        Args:
            name: What to call them.
            limit: How many algorithms cuDNN tries; None for the first of its own order, untried.

        Raises:
            RuntimeError: PyTorch refuses the call, or its capture.
        """
        found: list[Captured] = []
        failed: list[RuntimeError] = []

        def work() -> None:
            torch.cuda.set_device(0)
            try:
                found.append(self._capture(name))
            except RuntimeError as error:  # which PyTorch raises for whatever it cannot do
                failed.append(error)

        torch.backends.cudnn.benchmark = limit is not None
        torch.backends.cudnn.benchmark_limit = _ALGORITHMS if limit is None else limit
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join()
        if failed:
            first = next(iter(str(failed[0]).splitlines()), type(failed[0]).__name__)
            raise RuntimeError(f"{name}: {first}") from failed[0]
        if not found:
            raise RuntimeError(f"{name}: its thread has ended by an error that is printed above")
        return found[0]

    def _capture(self, name: str) -> Captured:
        calls = [(*inputs, *self._more(inputs)) for inputs in self._inputs]
        torch.cuda.synchronize()
        stream, started = torch.cuda.Stream(), time.perf_counter()
        with torch.cuda.stream(stream):
            first = _first(self._function(*calls[0])).clone()
            stream.synchronize()
            seconds = time.perf_counter() - started
            for call in calls[1:]:
                self._function(*call)
        stream.synchronize()
        cold, warm = self._graph(stream, calls, self._cold), self._graph(stream, calls[:1], self._warm)
        return Captured(name, cold, warm, first, seconds)

    def _graph(self, stream: Any, calls: Sequence[tuple[Any, ...]], rotation: Rotation) -> Replay:
        """What is written stays until its set's next turn: it is as much memory as the sets of ours write."""
        graph, results = torch.cuda.CUDAGraph(), [None] * len(calls)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(rotation.passes):
                for place, call in enumerate(calls):
                    results[place] = self._function(*call)
        kept = calls, results  # as long as the graph

        def enqueue() -> None:
            assert kept
            graph.replay()

        return Replay(enqueue, rotation.passes * len(calls))


def _first(result: Any) -> Any:
    """Of several results that which is not None."""
    return result if isinstance(result, torch.Tensor) else next(one for one in result if one is not None)


def fastest(
    rival: Rival,
    formats: Sequence[str],
    search: Search | None,
    mark: Callable[[], Event],
    is_right: Callable[[torch.Tensor], bool],
) -> tuple[list[Captured], dict[str, float], list[str]]:
    """The fastest of PyTorch's ways to make a call.

    Args:
        rival: The call.
        formats: How images are to lie; the first as ours do. None: as they do.
        search: For what cuDNN computes.
        mark: Records an event where graphs are replayed.
        is_right: Whether a result is.

    Returns:
        The fastest two, milliseconds of a call of all in a heat, and what was wrong with those that are not among them.
    """
    kept: list[Captured] = []
    heats: dict[str, float] = {}
    problems: list[str] = []
    for one in _contestants(rival, formats or ("as it is",), search, mark, problems):
        if not is_right(one.output):
            problems.append(f"{one.name}: its result is wrong")
            if search is not None:  # another may be right; where there is one way alone, what it takes is of interest
                continue
        heats[one.name] = race({one.name: one.cold}, mark, _HEAT_ROUNDS)[one.name].ms
        kept = sorted([*kept, one], key=lambda captured: heats[captured.name])[:_KEPT]
        release()  # what the others held
    return kept, heats, problems


def _contestants(
    rival: Rival, formats: Sequence[str], search: Search | None, mark: Callable[[], Event], problems: list[str]
) -> Iterator[Captured]:
    for place, images in enumerate(formats):
        own = rival if images == "as it is" or place == 0 else rival.lying(images)
        try:
            plain = own.captured(images)
            yield plain
        except RuntimeError as error:
            problems.append(str(error))
            continue
        if search is None:
            continue
        once = race({images: plain.cold}, mark, 1)[images].ms / 1e3
        limits = _limits(once, search, search.times if place == 0 else 1)
        del plain
        seconds, before = 0.0, 0
        for number, limit in enumerate(limits):
            if before and limit > before and seconds * limit / before > search.seconds:
                problems.append(f"{images}: {before} of cuDNN's algorithms took {seconds:.1f} s, no more were tried")
                break
            try:
                found = own.captured(f"{images}, search {number + 1} of {limit}", limit)
            except RuntimeError as error:
                problems.append(str(error))
                break
            seconds, before = found.seconds, limit
            yield found


def _limits(once: float, search: Search, times: int) -> tuple[int, ...]:
    """How many algorithms each search tries: few first where all might take too long."""
    is_quick = once * _SLOWNESS * _RUNS * _ALGORITHMS < search.seconds
    return (*(() if is_quick else _FIRST_LIMITS), *(_ALGORITHMS,) * times)
