"""Host memory for the rows of one batch: as a net reads them, or as pixels that the device turns into them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np

from dnncore.preprocessing import Preprocessing
from dnnserve.envelope import Block
from dnnserve.signature import Layout, Signature

__all__ = ["Slot"]

_LARGE_BYTES = 1 << 20


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

    def fill(self, blocks: Sequence[Block], copiers: Executor | None = None) -> tuple[int, bool]:
        """Copy the rows of blocks in, those of one behind those of the other.

        Args:
            blocks: Where some bring pixels and others do not, the pixels are normalised here.
            copiers: Of whom one copies half of them where they are large: a thread copies 6 GB/s, less than a GPU computes.

        Returns:
            How many rows they have, and whether `pixels` holds them.
        """
        pixels = all(block.pixels for block in blocks)
        brought = [block.read() for block in blocks]
        copies = []
        nbytes = position = 0
        for index, target in enumerate(self.read(pixels=pixels)):
            position = 0
            for arrays in brought:
                rows = arrays[index]
                end = position + len(rows)
                copies.append((target[position:end], rows))
                position = end
            nbytes += target[:position].nbytes
        half = len(copies) // 2
        if copiers is None or not half or nbytes < _LARGE_BYTES:
            self._copy(copies)
        else:
            other = copiers.submit(self._copy, copies[half:])
            try:
                self._copy(copies[:half])
            finally:
                other.result()
        return position, pixels

    def _copy(self, copies: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        for rows, block in copies:
            if block.dtype != rows.dtype:
                assert self.preprocessing is not None  # else no request with pixels is let in
                rows[...] = self.preprocessing.normalize(block)
            else:
                rows[...] = block


def _arrays(memory: np.ndarray, layout: Layout) -> tuple[np.ndarray, ...]:
    return tuple(place.view(memory, 0) for place in layout.inputs)
