"""Messages between a runner and its engine process.

The runner asks and the engine answers each question, in order. Rows and outputs lie in memory that both map and are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dnncore.preprocessing import Preprocessing
from dnnserve.engine.host import HostFactory
from dnnserve.envelope import ModelKey

__all__ = [
    "Assignment",
    "BeginLoad",
    "Done",
    "Failed",
    "Load",
    "Loaded",
    "Loading",
    "Look",
    "Message",
    "Opened",
    "Run",
    "Unload",
]


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
class Unload:
    """Give a model's memory back; answered by `Done`. Immutable."""

    model: ModelKey


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model is loaded; the message comes with the files of its slots and, last, of its outputs. Immutable.

    Args:
        max_batch_rows: As `Instance` has it.
        row_shape: Extents of one row.
        output_shape: Extents of its output.
        slots: Input buffers.
        preprocessing: What makes rows of pixels, where that is known.
        timings_ns: What its batches took, by rows; nothing where they were not timed.
    """

    max_batch_rows: int
    row_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    slots: int
    preprocessing: Preprocessing | None
    timings_ns: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Run:
    """Run the first rows of a model's slot, pixels or not. Immutable."""

    model: ModelKey
    slot: int
    rows: int
    pixels: bool


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for was done; the outputs of rows are in the part of the shared outputs that belongs to the slot. Immutable.

    Args:
        computed_ns: As `Instance` has it.
    """

    computed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked for failed. Immutable.

    Args:
        error: Name of the error's class, of `dnncore.errors` where it is one of ours.
        text: What it says.
    """

    error: str
    text: str


Message = Opened | Load | BeginLoad | Look | Loading | Loaded | Unload | Run | Done | Failed
