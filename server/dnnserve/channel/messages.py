"""What travels between a front end's process and the scheduler's. Plain data; times are nanoseconds of the clock that all share.

What travels with every request goes in notes: `Requests` to the scheduler, `Outcomes` back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dnnserve import errors
from dnnserve.catalog import ModelSpec
from dnnserve.envelope import ModelKey
from dnnserve.errors import RequestError
from dnnserve.questions import Answer, Question
from dnnserve.shared_memory.requests import Registration
from dnnserve.statistics import ModelSnapshot

__all__ = [
    "AddRegion",
    "Announce",
    "Answered",
    "Arena",
    "Asked",
    "CallsEnded",
    "CannotStart",
    "ClosePort",
    "ConnectionsRefused",
    "Count",
    "Forget",
    "Held",
    "Holds",
    "Inside",
    "Known",
    "LogLevel",
    "Models",
    "Outcomes",
    "Ping",
    "Pong",
    "Refusal",
    "Refused",
    "RemoveRegion",
    "Requests",
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
    "TurnedAway",
]


class Submit(NamedTuple):
    """Queue a request, whose block is in the arena. Immutable.

    Args:
        ticket: The front end's.
        model: Its number, of `Start` or `Serve`.
        offset: Of the block, in bytes.
        rows: How many.
        pixels: As `Block` has it.
        wanted: See there.
        arrival_ns: As `InferenceRequest` has it; so the rest.
        deadline_ns: See there.
        priority: See there.
    """

    ticket: int
    model: int
    offset: int
    rows: int
    pixels: bool
    wanted: tuple[int, ...]
    arrival_ns: int
    deadline_ns: int | None
    priority: int


class Requests(NamedTuple):
    """A note to the scheduler: what a front end has collected since the last one. Immutable.

    Args:
        submits: Fields of `Submit` each.
        cancels: Tickets of requests to be given up, of these too.
    """

    submits: tuple[tuple[Any, ...], ...]
    cancels: tuple[int, ...]


class Answered(NamedTuple):
    """Requests of one batch whose outputs are in their blocks, which are free again. Immutable.

    Args:
        tickets: The front end's.
        device: As `Answer` has it; so the rest.
        batch_rows: See there.
        times: Fields of `BatchTimes`.
        finished_ns: As `Completion` has it.
    """

    tickets: tuple[int, ...]
    device: str
    batch_rows: int
    times: tuple[int, int, int, int]
    finished_ns: int


class Refused(NamedTuple):
    """A request that failed. Immutable.

    Args:
        ticket: The front end's.
        kind: Name of the error's class.
        text: What it says.
        retry_after_ms, answer_ns: As `RequestError` has it.
        finished_ns: As `Completion` has it.
        held: Whether a device has the block still; else it is free again.
    """

    ticket: int
    kind: str
    text: str
    retry_after_ms: int | None
    answer_ns: int | None
    finished_ns: int
    held: bool

    @property
    def error(self) -> RequestError:
        """The error that it failed with."""
        error: RequestError = getattr(errors, self.kind)(self.text)
        if self.retry_after_ms is not None:
            error.retry_after_ms = self.retry_after_ms
        if self.answer_ns is not None:
            error.answer_ns = self.answer_ns
        return error


class Outcomes(NamedTuple):
    """A note to a front end. Immutable.

    Args:
        answered: Fields of `Answered` each.
        refused: Fields of `Refused` each.
        freed: Tickets of requests that were refused while a device held their blocks, which are free now.
    """

    answered: tuple[tuple[Any, ...], ...] = ()
    refused: tuple[tuple[Any, ...], ...] = ()
    freed: tuple[int, ...] = ()


class CallsEnded(NamedTuple):
    """Calls that ended alike, to be counted. Immutable.

    Args:
        model: None: they named none that is loaded.
        method: Its name.
        status: The name of gRPC's.
        taken_ns: Of each.
    """

    model: ModelKey | None
    method: str
    status: str
    taken_ns: Sequence[int]


class ConnectionsRefused(NamedTuple):
    """Connections that were closed again, to be counted. Immutable.

    Args:
        port: Its name.
        number: How many.
    """

    port: str
    number: int


class Refusal(NamedTuple):
    """A request that failed before it was queued, to be counted. Immutable."""

    model: ModelKey
    kind: str
    text: str
    taken_ns: int


class TurnedAway(NamedTuple):
    """Requests that were refused unread, to be counted. Immutable.

    Args:
        model: Whose they were.
        kind: Name of the error's class.
        text: What it says.
        calls: How many.
    """

    model: ModelKey
    kind: str
    text: str
    calls: int


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


class AddRegion(NamedTuple):
    """Requests may speak of a region; comes with its file. Immutable."""

    ticket: int
    registration: Registration


class RemoveRegion(NamedTuple):
    """Requests may speak of a region no more. Immutable."""

    ticket: int
    name: str


class Known(NamedTuple):
    """It is so, or cannot be. Immutable.

    Args:
        ticket: Of what was told.
        failure: Why it cannot be; empty where it is so.
    """

    ticket: int
    failure: str = ""


class Forget(NamedTuple):
    """A model is gone. Immutable."""

    model: ModelKey


class LogLevel(NamedTuple):
    """Log from this level up. Immutable."""

    level: str


class Asked(NamedTuple):
    """A client asks something of the server. Immutable."""

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


class Ping(NamedTuple):
    """Is anybody there? Immutable."""


class Pong(NamedTuple):
    """Who reads messages does so. Immutable."""


class Stop(NamedTuple):
    """End what is still open after so long, and end. Immutable."""

    grace_s: float


class Stopped(NamedTuple):
    """Everything is closed. Immutable."""
