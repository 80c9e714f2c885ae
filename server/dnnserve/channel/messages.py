"""What travels between a front end's process and the scheduler's. Plain data; times are nanoseconds of the clock that all share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dnnserve import errors
from dnnserve.catalog import ModelSpec
from dnnserve.envelope import BatchTimes, ModelKey
from dnnserve.errors import RequestError
from dnnserve.statistics import ModelSnapshot

__all__ = [
    "Announce",
    "Answered",
    "Arena",
    "CallEnded",
    "CallsEnded",
    "Cancel",
    "CannotStart",
    "ClosePort",
    "Completed",
    "Count",
    "Inside",
    "Refusal",
    "Refused",
    "Snapshot",
    "SnapshotOf",
    "Start",
    "Started",
    "Stop",
    "Stopped",
    "Submit",
]


class Submit(NamedTuple):
    """Queue a request, whose rows are in the arena. Immutable."""

    ticket: int
    model: ModelKey
    shape: tuple[int, ...]
    pixels: bool
    offset: int
    arrival_ns: int
    deadline_ns: int | None
    id: str


class Cancel(NamedTuple):
    """Give a request up. Immutable."""

    ticket: int


class Answered(NamedTuple):
    """A request's outputs are where its rows were. Immutable."""

    ticket: int
    shape: tuple[int, ...]
    device: str
    batch_rows: int
    times: tuple[int, int, int, int]
    finished_ns: int

    @property
    def batch_times(self) -> BatchTimes:
        """When its batch passed each stage."""
        return BatchTimes(*self.times)


class Refused(NamedTuple):
    """A request failed. Immutable."""

    ticket: int
    kind: str
    text: str
    retry_after_ms: int | None
    finished_ns: int

    @property
    def error(self) -> RequestError:
        """The error that it failed with."""
        error: RequestError = getattr(errors, self.kind)(self.text)
        if self.retry_after_ms is not None:
            error.retry_after_ms = self.retry_after_ms
        return error


class Completed(NamedTuple):
    """How requests ended, together. Immutable."""

    outcomes: Sequence[Answered | Refused]


class CallEnded(NamedTuple):
    """A call's end, to be counted. Immutable."""

    model: ModelKey | None
    method: str
    status: str
    taken_ns: int


class CallsEnded(NamedTuple):
    """Some of them. Immutable."""

    calls: Sequence[CallEnded]


class Refusal(NamedTuple):
    """A request that failed before it was queued, to be counted. Immutable."""

    model: ModelKey
    kind: str
    text: str
    taken_ns: int


class Snapshot(NamedTuple):
    """What are a model's counters? Immutable."""

    model: ModelKey


class SnapshotOf(NamedTuple):
    """These. Immutable."""

    model: ModelKey
    counters: ModelSnapshot


class CannotStart(NamedTuple):
    """The front end cannot serve. Immutable."""

    reason: str


class Arena(NamedTuple):
    """Here is the front end's arena; comes with its file. Immutable."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Start:
    """Take calls for these models. Immutable."""

    specs: tuple[ModelSpec, ...]


class Started(NamedTuple):
    """Calls are taken. Immutable."""

    front_end: str


class Announce(NamedTuple):
    """Say whether requests are answered; final: it is the last word. Immutable."""

    serving: bool
    final: bool


class ClosePort(NamedTuple):
    """Take no new connections and let calls end. Immutable."""

    grace_s: float


class Count(NamedTuple):
    """How many calls are inside? Immutable."""


class Inside(NamedTuple):
    """So many. Immutable."""

    calls: int


class Stop(NamedTuple):
    """End what is still open after so long, and end. Immutable."""

    grace_s: float


class Stopped(NamedTuple):
    """Everything is closed. Immutable."""
