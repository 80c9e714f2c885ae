"""What a pass of a normalisation takes by estimate."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.cuda.normalization.frame import Operand, Partition
from dnncore.figures import DeviceFigures

__all__ = ["Pace"]

_OF_MEMORY_RATE = {2: 0.68, 4: 0.85, 8: 0.85}
"""By the bytes of an element; fitted on an H200."""

_BROKEN = 0.6
_SCATTERED_PER_BYTE = 0.0375
"""Of that, where packs are not whole; and, times the bytes of an element, where neighbours in a pack are not neighbours in memory:
then each costs the same, however small. Measured there earlier."""

_REACH_OF_CHANNELS, _REACH_OF_MASKED_CHANNELS = {2: 1.4, 4: 1.12}, {2: 1.75, 4: 1.4}
"""Likewise, of the kernels of channels, by the bytes of an element; those of 16 bits fitted to the layers of ResNet-50 at batch 128
on an H200, of float32 assumed, so that both reach as much. Those that mask dy, of which four blocks fit in place of five, are
assumed to need no more."""

_BLOCKS_AT_FULL_RATE = 5
"""Per multiprocessor; fewer reach the less of the memory's rate. Fitted on an H200."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast passes over elements of a size are on a device. Immutable.

    Args:
        figures: Of the device.
        itemsize: Bytes of an element of x.
    """

    figures: DeviceFigures
    itemsize: int

    def reach(self, partition: Partition) -> float:
        """Of the rate of whole packs, what loads as the partition has them reach."""
        if partition.is_aligned:
            return 1.0
        packed = partition.groups if partition.packs_groups else partition.elements
        if packed[1 + Operand.X][-1] == 1 and packed[0][-1] >= partition.width:
            return _BROKEN
        return _SCATTERED_PER_BYTE * self.itemsize

    def reach_of_channels(self, *, masks: bool) -> float:
        """Likewise, what the kernels of channels reach, which may mask dy."""
        return (_REACH_OF_MASKED_CHANNELS if masks else _REACH_OF_CHANNELS)[self.itemsize]

    def seconds(self, nbytes: int, blocks: int, reach: float = 1.0) -> float:
        """Estimated time of a pass: nothing where there is nothing to do.

        Args:
            nbytes: Read and written.
            blocks: Of the grid.
            reach: Of the rate that whole packs are moved at.
        """
        if not blocks:
            return 0.0
        busy = min(blocks / (self.figures.multiprocessors * _BLOCKS_AT_FULL_RATE), 1.0)
        rate = self.figures.bytes_per_second * _OF_MEMORY_RATE[self.itemsize]
        return self.figures.launch_seconds + nbytes / (rate * reach * busy)
