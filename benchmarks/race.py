"""The timing of everything that is measured on a device beside something else: graphs of many calls, replayed in turns.

What a call takes is the time of a replay, between two events, over the calls in it: neither the host nor the gaps between launches
count. The calls of a graph go through several sets of operands in turn, together larger than the second-level cache, so that what
a call reads is not there; with one set it is (`warm`). Contestants take turns for several rounds, so that a clock that changes
does so for all, and the median counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dnncore.backend import Event

__all__ = ["METHOD", "Replay", "Rotation", "Time", "race"]

METHOD = "CUDA graphs of calls on rotating buffers, replayed in turns, medians"
"""What results files say of their figures; those of another method are not kept beside them."""

_CACHES = 4
"""How many times the cache the sets take together: enough that nothing of a set is left when its turn comes again."""

_MOST_SETS = 1024
_REPLAY_SECONDS = 2e-3
_FEWEST_CALLS, _MOST_CALLS = 12, 2048
_RACE_SECONDS = 0.4
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 31


class Time(NamedTuple):
    """Milliseconds of a call: the median of the rounds, and half of the distance between their quartiles over that."""

    ms: float
    spread: float


@dataclass(frozen=True)
class Rotation:
    """How many sets of operands there are, and how often a graph goes through them. Immutable."""

    sets: int
    passes: int

    @property
    def calls(self) -> int:
        """In one graph."""
        return self.sets * self.passes

    @classmethod
    def cold(cls, nbytes: int, cache_bytes: int, seconds: float) -> Rotation:
        """So many sets that a call finds nothing in the cache.

        Args:
            nbytes: Of one set.
            cache_bytes: Of the device's second-level cache.
            seconds: About what a call takes.
        """
        sets = max(2, min(_MOST_SETS, -(-_CACHES * cache_bytes // max(nbytes, 1))))
        return cls(sets, _passes(sets, seconds))

    @classmethod
    def warm(cls, seconds: float) -> Rotation:
        """One set."""
        return cls(1, _passes(1, seconds))


def _passes(sets: int, seconds: float) -> int:
    """So many that events and the launch of a graph do not count: 12 calls and 2 ms at least, but for calls that are long."""
    wanted = max(1, round(_REPLAY_SECONDS / max(seconds, 1e-9)))
    if seconds * _FEWEST_CALLS < 10 * _REPLAY_SECONDS:
        wanted = max(wanted, _FEWEST_CALLS)
    return -(-min(wanted, _MOST_CALLS) // sets)


@dataclass(frozen=True)
class Replay:
    """A graph of several calls. Immutable.

    Args:
        enqueue: Launches it.
        calls: How many there are in it.
    """

    enqueue: Callable[[], None]
    calls: int


def race(contestants: Mapping[str, Replay], mark: Callable[[], Event], rounds: int | None = None) -> dict[str, Time]:
    """What a call takes of each, in turns.

    Args:
        contestants: By name.
        mark: Records an event where they are enqueued.
        rounds: How many; None for as many as fit in a fraction of a second, but 7 at least.
    """

    def sample(replay: Replay) -> tuple[Event, Event]:
        start = mark()
        replay.enqueue()
        return start, mark()

    first = [sample(replay) for replay in contestants.values()]  # loads code, and brings the clock up
    if rounds is None:
        seconds = sum(end.elapsed_ms(start) for start, end in first) / 1e3
        rounds = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, int(_RACE_SECONDS / max(seconds, 1e-6))))
    samples: dict[str, list[tuple[Event, Event]]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, replay in contestants.items():
            samples[name].append(sample(replay))
    return {
        name: _time([end.elapsed_ms(start) / contestants[name].calls for start, end in found])
        for name, found in samples.items()
    }


def _time(ms: Sequence[float]) -> Time:
    median = statistics.median(ms)
    if len(ms) < 2 or not median:
        return Time(median, 0.0)
    low, _, high = statistics.quantiles(ms, n=4)
    return Time(median, (high - low) / 2 / median)
