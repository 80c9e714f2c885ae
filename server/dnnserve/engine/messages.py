"""Messages between a runner and its engine process.

The runner asks and the engine answers each question, in order; `Map`, `Unmap` and `LogLevel` ask for nothing, and a `SIGN` is
answered by one, at once. Rows and outputs lie in arenas that the engine maps, and are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dnnserve.engine.host import HostFactory
from dnnserve.envelope import ModelKey
from dnnserve.signature import Signature

__all__ = [
    "SIGN",
    "Assignment",
    "BeginLoad",
    "Done",
    "Failed",
    "Load",
    "Loaded",
    "Loading",
    "LogLevel",
    "Look",
    "Map",
    "Message",
    "Opened",
    "Run",
    "TimeBatches",
    "Timings",
    "Unload",
    "Unloaded",
    "Unmap",
]


SIGN = ()
"""A note, of nothing: that the other end is there, and may say so too."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an engine process is told at its start, in a parcel. Immutable.

    Args:
        open_host: Opens the device; it is pickled, with the models that it may hold.
        log_format: Of the lines on stderr: "text" or "json".
        models: That `open_host` reads: what comes with later messages is put there.
        log_level: From which on lines are logged.
    """

    open_host: HostFactory
    log_format: str
    models: dict[ModelKey, Any] = field(default_factory=dict)
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine has its device. Immutable."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model; comes with its parcel, unless the assignment has it. Immutable."""

    model: ModelKey
    max_batch_rows: int


@dataclass(frozen=True, slots=True)
class BeginLoad:
    """Begin to load a model beside what runs; comes with its parcel, and is answered by `Loading`. Immutable."""

    model: ModelKey
    max_batch_rows: int
    warm_up_ns: int


@dataclass(frozen=True, slots=True)
class Look:
    """Is it there? Answered by `Loading` or by `Loaded`. Immutable."""

    model: ModelKey


@dataclass(frozen=True, slots=True)
class Loading:
    """Not yet. Immutable."""


@dataclass(frozen=True, slots=True)
class TimeBatches:
    """What do a model's batches take? Immutable."""

    model: ModelKey
    budget_ns: int


@dataclass(frozen=True, slots=True)
class Timings:
    """So much, by rows. Immutable."""

    timings_ns: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Unload:
    """Give a model's memory back. Immutable."""

    model: ModelKey


@dataclass(frozen=True, slots=True)
class Unloaded:
    """It was given back. Immutable."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model is loaded. Immutable.

    Args:
        depth: As `Pipeline` has it; so the rest.
        max_batch_rows: See there.
        signature: What the model reads and gives.
        timings_ns: What its batches took, by rows; nothing where they were not timed.
    """

    depth: int
    max_batch_rows: int
    signature: Signature
    timings_ns: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Map:
    """Blocks of batches that follow are in this arena; comes with its file. Immutable."""

    arena: int


@dataclass(frozen=True, slots=True)
class Unmap:
    """No blocks are in it any more. Immutable."""

    arena: int


@dataclass(frozen=True, slots=True)
class LogLevel:
    """Log from this level up. Immutable."""

    level: str


class Run(NamedTuple):
    """A note: run a batch. Immutable.

    Args:
        model: Fields of its `ModelKey`.
        blocks: For each block its arena's number, its offset, its rows, whether these are pixels, and the numbers of the outputs
            that are wanted; one after another.
    """

    model: tuple[str, int, int]
    blocks: tuple[Any, ...]


class Done(NamedTuple):
    """A note: the outputs of the oldest batch are in its blocks. Immutable.

    Args:
        staged_ns: As `Timing` has it; so the rest.
        computed_ns: See there.
        slot_bytes: See there.
        apart_bytes: See there.
    """

    staged_ns: int
    computed_ns: int
    slot_bytes: int
    apart_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked for failed. Immutable.

    Args:
        error: Name of the error's class, of `dnncore.errors` where it is one of ours.
        text: What it says.
    """

    error: str
    text: str


Message = (
    Opened
    | Load
    | BeginLoad
    | Look
    | Loading
    | Loaded
    | TimeBatches
    | Timings
    | Unload
    | Unloaded
    | Map
    | Unmap
    | LogLevel
    | Failed
)
