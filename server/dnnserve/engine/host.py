"""What runs batches: the seam between a runner and its device.

A host is what one runner thread opens on its device; an instance is one model loaded there. `net.py` implements them over dnncore,
`process.py` over a process that does so; tests put fakes with programmable latency and faults behind the same Protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dnnserve.engine.slot import Slot
from dnnserve.envelope import ModelKey

__all__ = ["Buffers", "Engines", "Fresh", "Host", "HostFactory", "Instance"]

Buffers = Callable[[int], np.ndarray]
"""Gives so many bytes of host memory, uint8, that begin at a page."""


class Instance(Protocol):
    """One model, loaded on one device and warm. Owned by one thread."""

    @property
    def max_batch_rows(self) -> int:
        """Rows that one batch may have here: less than asked for where the device's memory ends earlier."""
        ...

    @property
    def slots(self) -> Sequence[Slot]:
        """Input buffers of `max_batch_rows` each, one for each batch that may be begun and not yet finished."""
        ...

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Extents of the output of one row."""
        ...

    @property
    def computed_ns(self) -> int:
        """What the last batch that was finished took, from its rows in the slot to its outputs on the host."""
        ...

    def begin(self, slot: int, rows: int, pixels: bool) -> None:
        """Run the first rows of a slot, as `Slot.fill` has left them; whether this returns before that is done is up to the device.

        Raises:
            DeviceFaultError: the device is lost for good; any other error fails this batch alone.
        """
        ...

    def finish(self) -> np.ndarray:
        """Wait for the oldest batch that was begun.

        Returns:
            float32 [rows, *output_shape], valid until its slot is begun again.

        Raises:
            DeviceFaultError: as `begin`; so any other error.
        """
        ...


@dataclass(frozen=True, slots=True)
class Fresh:
    """What was loaded beside that which runs. Immutable.

    Args:
        instance: The model, warm.
        timings_ns: What its batches took, by rows.
    """

    instance: Instance
    timings_ns: Mapping[int, int]


class Host(Protocol):
    """A device as one runner thread holds it. Owned by one thread, but for `kill`."""

    def load(self, model: ModelKey, max_batch_rows: int, buffers: Buffers | None = None) -> Instance:
        """Load a model and warm it up.

        Args:
            model: Which.
            max_batch_rows: Rows that batches are wanted to have.
            buffers: Where its slots shall lie; None for memory of its own.

        Raises:
            OutOfMemoryError: not even a batch of one fits.
        """
        ...

    def begin_load(self, model: ModelKey, max_batch_rows: int, warm_up_ns: int, buffers: Buffers | None = None) -> None:
        """Begin to load a model beside what runs here; `loaded` says when it is there.

        Args:
            model: Which.
            max_batch_rows: Rows that batches shall have; they are not made smaller.
            warm_up_ns: How long its batches are timed.
            buffers: As `load` has it; called in another thread.
        """
        ...

    def loaded(self, model: ModelKey) -> Fresh | None:
        """What `begin_load` has made; None: not yet.

        Raises:
            OutOfMemoryError: there is no room for it; the message says how much was wanted and is there. Nothing of it is left.
            DnncoreError: so for whatever else kept it from being loaded.
        """
        ...

    def unload(self, model: ModelKey) -> None:
        """Give a model's memory back; nothing of it runs."""
        ...

    def on_loss(self, act: Callable[[], None]) -> None:
        """Act, in any thread, should the device be lost while nothing runs on it; called once, after it was opened."""
        ...

    def kill(self) -> bool:
        """End whatever it does, from any thread, so that the thread which waits for it gets a DeviceFaultError.

        Returns:
            Whether that can be done here.
        """
        ...

    def close(self) -> None:
        """Give everything back; must be called by the thread that opened it."""
        ...


HostFactory = Callable[[str], Host]
"""Opens a device by name, in the thread that will use it."""


class Engines(Protocol):
    """A `HostFactory`, with the models that its hosts load. Thread-safe."""

    def put(self, model: ModelKey, served: Any) -> None:
        """Keep a model to be loaded, now or when a device is opened again."""
        ...

    def drop(self, model: ModelKey) -> None:
        """Keep a model no more. A second call does nothing."""
        ...

    def __call__(self, device: str) -> Host:
        """Open a device by name, in the thread that will use it."""
        ...

    def close(self) -> None:
        """Keep nothing more; every device is closed."""
        ...
