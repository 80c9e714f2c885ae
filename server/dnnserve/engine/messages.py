"""Messages between a runner and its engine process.

The runner asks and the engine answers each question, in order. Rows and outputs lie in memory that both map and are never sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.preprocessing import Preprocessing
from dnnserve.engine.host import HostFactory
from dnnserve.envelope import ModelKey

__all__ = ["Assignment", "Done", "Failed", "Load", "Loaded", "Message", "Opened", "Run"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an engine process is told at its start, in a parcel. Immutable.

    Args:
        open_host: Opens the device; it is pickled, with the models that it holds.
        log_format: Of the lines on stderr: "text" or "json".
    """

    open_host: HostFactory
    log_format: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine has its device. Immutable."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model. Immutable."""

    model: ModelKey
    max_batch_rows: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model is loaded; the message comes with the files of its slots and, last, of its outputs. Immutable.

    Args:
        max_batch_rows: As `Instance` has it.
        row_shape: Extents of one row.
        output_shape: Extents of its output.
        slots: Input buffers.
        preprocessing: What makes rows of pixels, where that is known.
    """

    max_batch_rows: int
    row_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    slots: int
    preprocessing: Preprocessing | None


@dataclass(frozen=True, slots=True)
class Run:
    """Run the first rows of a model's slot, pixels or not. Immutable."""

    model: ModelKey
    slot: int
    rows: int
    pixels: bool


@dataclass(frozen=True, slots=True)
class Done:
    """They were run; the outputs are in the part of the shared outputs that belongs to the slot. Immutable.

    Args:
        computed_ns: As `Instance` has it.
    """

    computed_ns: int


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked for failed. Immutable.

    Args:
        error: Name of the error's class, of `dnncore.errors` where it is one of ours.
        text: What it says.
    """

    error: str
    text: str


Message = Opened | Load | Loaded | Run | Done | Failed
