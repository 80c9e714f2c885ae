"""A model on a device of this process: the seam between a pipeline and what computes.

`net.py` implements it over dnncore; tests put fakes with programmable latency and faults behind the same Protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from dnnserve.engine.slot import Apart, Slot
from dnnserve.signature import Signature

__all__ = ["Instance"]


class Instance(Protocol):
    """One model, loaded on one device and warm. Owned by one thread, but `finish` may be called by another one beside `begin`."""

    @property
    def max_batch_rows(self) -> int:
        """Rows that one batch may have here: less than asked for where the device's memory ends earlier."""
        ...

    @property
    def slots(self) -> Sequence[Slot]:
        """Input buffers of `max_batch_rows` each, one for each batch that may be begun and not yet finished."""
        ...

    @property
    def signature(self) -> Signature:
        """What the model reads and gives."""
        ...

    @property
    def computed_ns(self) -> int:
        """What the last batch that was finished took, from its rows in the slot to its outputs on the host."""
        ...

    def begin(
        self, slot: int, rows: int, pixels: bool, wanted: Sequence[int], apart: Sequence[Sequence[Apart]] = ()
    ) -> None:
        """Run the first rows of a slot, as `Slot.fill` has left them; whether this returns before that is done is up to the device.

        Where it raises, nothing is read any more.

        Args:
            slot: Its number.
            rows: How many.
            pixels: Whether they are in `Slot.pixels`.
            wanted: Numbers of the outputs that come to the host.
            apart: Rows of each input that are elsewhere, as `Filled` has them, unchanged until `finish` has returned; empty: none.

        Raises:
            DeviceFaultError: the device is lost for good; any other error fails this batch alone.
        """
        ...

    def finish(self) -> Mapping[int, np.ndarray]:
        """Wait for the oldest batch that was begun.

        Returns:
            [rows, ...] of the outputs that were wanted, by number, valid until its slot is begun again.

        Raises:
            DeviceFaultError: as `begin`; so any other error.
        """
        ...
