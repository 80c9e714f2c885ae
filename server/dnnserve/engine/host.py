"""A device that models are loaded on: the seam between a runner and it.

A host is what one runner thread opens on its device; a pipeline is one model loaded there. `net.py` implements it over dnncore,
`process.py` over a process that does so; tests put fakes behind the same Protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dnnserve.engine.pipeline import Pipeline
from dnnserve.envelope import ModelKey

__all__ = ["Engines", "Fresh", "Host", "HostFactory", "labelled"]


@dataclass(frozen=True, slots=True)
class Fresh:
    """What was loaded beside that which runs. Immutable.

    Args:
        pipeline: The model, warm.
        timings_ns: What its batches took, by rows.
    """

    pipeline: Pipeline
    timings_ns: Mapping[int, int]


class Host(Protocol):
    """A device as one runner thread holds it. Owned by one thread, but for `look` and `kill`."""

    def load(self, model: ModelKey, max_batch_rows: int) -> Pipeline:
        """Load a model and warm it up.

        Args:
            model: Which.
            max_batch_rows: Rows that batches are wanted to have.

        Raises:
            OutOfMemoryError: not even a batch of one fits.
        """
        ...

    def begin_load(self, model: ModelKey, max_batch_rows: int, warm_up_ns: int) -> None:
        """Begin to load a model beside what runs here; `loaded` says when it is there.

        Args:
            model: Which.
            max_batch_rows: Rows that batches shall have; they are not made smaller.
            warm_up_ns: How long its batches are timed.
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

    def watch(self, on_end: Callable[[], None], on_loss: Callable[[], None]) -> None:
        """Act, in any thread, when a batch has ended for which nobody computes here, and when the device is lost; called once."""
        ...

    def look(self) -> None:
        """Find out, from any thread, whether it still does anything, and kill it if it does not; called again and again."""
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

    def set_log_level(self, level: str) -> None:
        """Have processes of devices, where there are any, log from this level up."""
        ...

    def __call__(self, device: str) -> Host:
        """Open a device by name, in the thread that will use it."""
        ...

    def close(self) -> None:
        """Keep nothing more; every device is closed."""
        ...


def labelled(names: Sequence[str]) -> list[tuple[str, str]]:
    """(label, name) of each device; a name that comes again is numbered: cpu, cpu#1."""
    seen: dict[str, int] = {}
    labelled = []
    for name in names:
        number = seen[name] = seen.get(name, -1) + 1
        labelled.append((f"{name}#{number}" if number else name, name))
    return labelled
