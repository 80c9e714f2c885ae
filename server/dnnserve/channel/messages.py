"""What travels between a front end's process and the scheduler's. Plain data; times are nanoseconds of the clock that all share.

Notes are what travels with every request: a `Submit`, or a ticket alone to give it up; and back a tuple of `Answered` and
`Refused`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dnnserve import errors
from dnnserve.catalog import ModelSpec
from dnnserve.envelope import ModelKey
from dnnserve.errors import RequestError
from dnnserve.lifecycle.requests import Answer, Question
from dnnserve.statistics import ModelSnapshot

__all__ = [
    "Announce",
    "Answered",
    "Arena",
    "Asked",
    "CallEnded",
    "CallsEnded",
    "CannotStart",
    "ClosePort",
    "Count",
    "Forget",
    "Held",
    "Holds",
    "Inside",
    "LogLevel",
    "Models",
    "Refusal",
    "Refused",
    "Serve",
    "Served",
    "Snapshot",
    "SnapshotOf",
    "Start",
    "Started",
    "Stop",
    "Stopped",
    "Submit",
    "Told",
]


class Submit(NamedTuple):
    """A note: queue a request, whose rows are in the arena. Immutable.

    Args:
        ticket: The front end's.
        model: Its number, of `Start` or `Serve`.
        shape: Of the rows.
        pixels: Whether they are uint8.
        offset: Of the rows in the arena, in bytes.
        arrival_ns: As `InferenceRequest` has it; so the rest.
        deadline_ns: See there.
        id: See there.
        priority: See there.
    """

    ticket: int
    model: int
    shape: tuple[int, ...]
    pixels: bool
    offset: int
    arrival_ns: int
    deadline_ns: int | None
    id: str
    priority: int


class Answered(NamedTuple):
    """In a note: a request's outputs are where its rows were. Immutable.

    Args:
        ticket: The front end's.
        shape: Of the outputs.
        device: As `Answer` has it; so the rest.
        batch_rows: See there.
        times: Fields of `BatchTimes`.
        finished_ns: As `Completion` has it.
    """

    ticket: int
    shape: tuple[int, ...]
    device: str
    batch_rows: int
    times: tuple[int, int, int, int]
    finished_ns: int


class Refused(NamedTuple):
    """In a note: a request failed. Immutable.

    Args:
        ticket: The front end's.
        kind: Name of the error's class.
        text: What it says.
        retry_after_ms: As `RequestError` has it.
        finished_ns: As `Completion` has it.
    """

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


Models = tuple[tuple[int, ModelSpec], ...]
"""Models with their numbers, by which notes name them."""


@dataclass(frozen=True, slots=True)
class Start:
    """Take calls for these models. Immutable."""

    models: Models


@dataclass(frozen=True, slots=True)
class Serve:
    """Give requests to these models from now on. Immutable."""

    models: Models


class Served(NamedTuple):
    """It is so. Immutable."""


class Holds(NamedTuple):
    """Has a request been given to a model, and has no answer yet? Immutable."""

    model: ModelKey


class Held(NamedTuple):
    """Whether it is so. Immutable."""

    model: ModelKey
    held: bool


class Forget(NamedTuple):
    """A model is gone. Immutable."""

    model: ModelKey


class LogLevel(NamedTuple):
    """Log from this level up. Immutable."""

    level: str


class Asked(NamedTuple):
    """A client asks something of the repository. Immutable."""

    ticket: int
    question: Question


class Told(NamedTuple):
    """The answer to it. Immutable."""

    ticket: int
    answer: Answer


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
