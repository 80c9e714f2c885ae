"""Host memory for the rows of one batch: as a net reads them, or as pixels that the device turns into them.

What is large and lies in page-locked memory already is left where it is, and the device copies it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from dnncore.preprocessing import Preprocessing
from dnnserve.envelope import Block
from dnnserve.signature import Layout, Signature

__all__ = ["Apart", "Filled", "Slot", "joined", "may_stay"]

_LARGE_BYTES = 1 << 20

_APART_BYTES = 512 << 10
"""From which on rows are left where they are. Each such block is a copy of its own for the driver, which takes a thread 3.6 us on
the host of an H200, in which it would have copied 37 KB; and small copies do not use the bus well: requests of one image of 150 KB
were answered more slowly so [measured on an H100], those of eight faster."""


class Apart(NamedTuple):
    """Rows of a batch that are not in its slot. Immutable.

    Args:
        first: The number of the first.
        rows: [n, ...], contiguous and page-locked.
    """

    first: int
    rows: np.ndarray


class Filled(NamedTuple):
    """Where the rows of a batch are. Immutable.

    Args:
        rows: How many.
        pixels: Whether those in the slot are in `Slot.pixels`, and the others are pixels too.
        apart: Those of each input that are elsewhere, in order; the slot has room for them, and nothing in it.
        slot_bytes: What was copied into the slot, as it is there.
    """

    rows: int
    pixels: bool
    apart: Sequence[Sequence[Apart]]
    slot_bytes: int

    @property
    def apart_bytes(self) -> int:
        """Bytes of what is elsewhere."""
        return sum(each.rows.nbytes for parts in self.apart for each in parts)


def may_stay(nbytes: int) -> bool:
    """Whether a device reads a block's rows of an input, so many bytes, where they are, if that memory is page-locked."""
    return nbytes >= _APART_BYTES


def joined(slot: np.ndarray, apart: Sequence[Apart]) -> Sequence[np.ndarray]:
    """The parts of an input, one behind the other: those in the slot, [rows, ...], and between them those that are elsewhere."""
    parts: list[np.ndarray] = []
    position = 0
    for first, rows in apart:
        if first > position:
            parts.append(slot[position:first])
        parts.append(rows)
        position = first + len(rows)
    if position < len(slot):
        parts.append(slot[position:])
    return parts


class Slot:
    """Room for so many rows. Owned by one thread.

    Args:
        memory: uint8, `Slot.nbytes` of them or more.
        rows: As many as fit.
        signature: What the model reads.
        preprocessing: What makes rows of pixels, for a model of one input; None where nobody has said it.

    Attributes:
        preprocessing: As above.
        inputs: [rows, ...] of each input.
        pixels: uint8 [rows, H, W, C], in the memory of the only input; nothing without preprocessing.
    """

    def __init__(
        self, memory: np.ndarray, rows: int, signature: Signature, preprocessing: Preprocessing | None
    ) -> None:
        self.inputs = _arrays(memory, signature.layout(rows, pixels=False, wanted=()))
        self.pixels = () if preprocessing is None else _arrays(memory, signature.layout(rows, pixels=True, wanted=()))
        self.preprocessing = preprocessing

    @staticmethod
    def nbytes(rows: int, signature: Signature) -> int:
        """Bytes of so many rows."""
        return sum(tensor.nbytes(rows) for tensor in signature.inputs)

    def read(self, *, pixels: bool) -> Sequence[np.ndarray]:
        """What a batch is in: `pixels` or `inputs`."""
        return self.pixels if pixels else self.inputs

    def fill(self, blocks: Sequence[Block], copiers: Executor | None = None) -> Filled:
        """Copy the rows of blocks in, those of one behind those of the other, but for those that a device reads where they are.

        Args:
            blocks: Where some bring pixels and others do not, the pixels are normalised here.
            copiers: Of whom one copies half of them where they are large: a thread copies 6 GB/s, less than a GPU computes.
        """
        pixels = all(block.pixels for block in blocks)
        brought = [(block.read(), block.page_locked) for block in blocks]
        copies = []
        apart: list[list[Apart]] = []
        nbytes = position = 0
        for index, target in enumerate(self.read(pixels=pixels)):
            position = 0
            apart.append([])
            for arrays, page_locked in brought:
                rows = arrays[index]
                end = position + len(rows)
                if page_locked and may_stay(rows.nbytes) and rows.dtype == target.dtype:
                    apart[-1].append(Apart(position, rows))
                else:
                    place = target[position:end]
                    copies.append((place, rows))
                    nbytes += place.nbytes  # pixels beside rows become four times as many
                position = end
        half = len(copies) // 2
        if copiers is None or not half or nbytes < _LARGE_BYTES:
            self._copy(copies)
        else:
            other = copiers.submit(self._copy, copies[half:])
            try:
                self._copy(copies[:half])
            finally:
                other.result()
        return Filled(position, pixels, apart, nbytes)

    def _copy(self, copies: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        for rows, block in copies:
            if block.dtype != rows.dtype:
                assert self.preprocessing is not None  # else no request with pixels is let in
                rows[...] = self.preprocessing.normalize(block)
            else:
                rows[...] = block


def _arrays(memory: np.ndarray, layout: Layout) -> tuple[np.ndarray, ...]:
    return tuple(place.view(memory, 0) for place in layout.inputs)
