"""What a runner drives: the seam between batches of requests and a model on a device, wherever that is.

`LocalPipeline` is one over an instance of this process; `process.py` has one over an engine process, which drives a local one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from dnnserve.engine.instance import Instance
from dnnserve.engine.slot import Filled
from dnnserve.engine.warm_up import time_batches
from dnnserve.envelope import Block

__all__ = ["LocalPipeline", "Pipeline", "Timing"]


class Timing(NamedTuple):
    """What became of a batch on its device. Immutable.

    Args:
        staged_ns: When its rows were in a slot, or where the device reads them, on the monotonic clock.
        computed_ns: What it took from there to its outputs on the host, without waiting for batches before it.
        slot_bytes: Of its rows, those that were copied into a slot.
        apart_bytes: And those that the device has read where they were.
    """

    staged_ns: int
    computed_ns: int
    slot_bytes: int = 0
    apart_bytes: int = 0


class Pipeline(Protocol):
    """Batches of one model on one device, each of them staged, begun, finished and delivered, in order. Owned by one thread.

    Any of these raises DeviceFaultError where the device is lost for good; any other error fails this batch alone, which is then
    over.
    """

    @property
    def depth(self) -> int:
        """Batches that may be staged and not yet delivered."""
        ...

    @property
    def max_batch_rows(self) -> int:
        """Rows that one batch may have here: less than asked for where the device's memory ends earlier."""
        ...

    @property
    def ended(self) -> bool:
        """Whether `finish` need not wait for anything beyond this thread's own work."""
        ...

    def time(self, budget_ns: int) -> Mapping[int, int]:
        """What batches of each size take: nanoseconds by rows; see `warm_up.py`. Nothing is staged."""
        ...

    def stage(self, batch: Sequence[Block]) -> None:
        """Have the rows of a batch brought into the next slot."""
        ...

    def begin(self) -> None:
        """Have the batch run that was staged first of those that have not been begun; whether this waits is up to the device."""
        ...

    def finish(self) -> Timing:
        """Wait for the outputs of the batch that was begun first of those that have not been finished."""
        ...

    def deliver(self) -> None:
        """See to it that the outputs of the batch that was finished last are in its blocks. Until then they may be given up."""
        ...


@dataclass(slots=True)
class _Staged:
    """A batch whose rows are in a slot, or apart. Owned by one thread at a time."""

    batch: Sequence[Block]
    slot: int
    filled: Filled
    wanted: Sequence[int]
    staged_ns: int


class LocalPipeline:
    """A pipeline over an instance. Owned by one thread, or by three: one that stages batches, one that begins them, and one that
    finishes and delivers them.

    Args:
        instance: Loaded and warm.
    """

    ended = True

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._free = deque(range(len(instance.slots)))
        self._staged: deque[_Staged] = deque()
        self._begun: deque[_Staged] = deque()
        self._finished: tuple[_Staged, Mapping[int, np.ndarray]] | None = None

    @property
    def depth(self) -> int:
        """One batch a slot."""
        return len(self.instance.slots)

    @property
    def max_batch_rows(self) -> int:
        """The instance's."""
        return self.instance.max_batch_rows

    def time(self, budget_ns: int) -> Mapping[int, int]:
        """Run batches of zeros."""
        return time_batches(self.instance, budget_ns, time.monotonic_ns)

    def stage(self, batch: Sequence[Block], copiers: Executor | None = None) -> None:
        """Copy the rows into a slot, with copiers half of a large batch by one of them; what may stay is left where it is."""
        slot = self._free.popleft()
        try:
            filled = self.instance.slots[slot].fill(batch, copiers)
        except BaseException:
            self._free.append(slot)
            raise
        wanted = sorted(set().union(*[block.wanted for block in batch]))
        self._staged.append(_Staged(batch, slot, filled, wanted, time.monotonic_ns()))

    def begin(self) -> None:
        """Begin to run what was staged."""
        staged = self._staged.popleft()
        rows, pixels, apart, _ = staged.filled
        try:
            self.instance.begin(staged.slot, rows, pixels, staged.wanted, apart)
        except BaseException:
            self._free.append(staged.slot)
            raise
        self._begun.append(staged)

    def finish(self) -> Timing:
        """Wait for outputs, or compute them."""
        staged = self._begun.popleft()
        try:
            self._finished = staged, self.instance.finish()
        except BaseException:
            self._free.append(staged.slot)
            raise
        filled = staged.filled
        return Timing(staged.staged_ns, self.instance.computed_ns, filled.slot_bytes, filled.apart_bytes)

    def deliver(self) -> None:
        """Copy the outputs into the blocks."""
        assert self._finished is not None
        (staged, outputs), position = self._finished, 0
        self._finished = None
        try:
            for block in staged.batch:
                block.write(outputs, position)
                position += len(block)
        finally:
            self._free.append(staged.slot)
