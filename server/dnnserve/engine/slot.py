"""Host memory for the rows of one batch: as a net reads them, or as pixels that the device turns into them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np

from dnncore.preprocessing import Preprocessing

__all__ = ["Slot"]

_LARGE_BYTES = 1 << 20


class Slot:
    """Room for so many rows. Owned by one thread.

    Args:
        memory: uint8, `Slot.nbytes` of them or more.
        rows: As many as fit.
        row_shape: (C, H, W) of a row.
        preprocessing: What makes rows of pixels; None where nobody has said it.

    Attributes:
        row_shape, preprocessing: As above.
        rows: float32 [rows, C, H, W].
        pixels: uint8 [rows, H, W, C], in the same memory.
    """

    def __init__(
        self, memory: np.ndarray, rows: int, row_shape: Sequence[int], preprocessing: Preprocessing | None
    ) -> None:
        shape = (rows, *row_shape)
        self.rows: np.ndarray = memory[: self.nbytes(rows, row_shape)].view(np.float32).reshape(shape)
        self.pixels: np.ndarray = memory[: math.prod(shape)].reshape(rows, *row_shape[1:], *row_shape[:1])
        self.row_shape = tuple(row_shape)
        self.preprocessing = preprocessing

    @staticmethod
    def nbytes(rows: int, row_shape: Sequence[int]) -> int:
        """Bytes of rows of a shape."""
        return 4 * rows * math.prod(row_shape)

    def fill(self, blocks: Sequence[np.ndarray], copiers: Executor | None = None) -> tuple[int, bool]:
        """Copy blocks of rows in, one behind the other.

        Args:
            blocks: float32 [n, C, H, W] or uint8 [n, H, W, C]; where both come, the pixels are normalised here.
            copiers: Of whom one copies half of them where they are large: a thread copies 6 GB/s, less than a GPU computes.

        Returns:
            How many rows they have, and whether `pixels` holds them.
        """
        pixels = all(block.dtype == np.uint8 for block in blocks)
        target, position = self.pixels if pixels else self.rows, 0
        copies = []
        for block in blocks:
            copies.append((target[position : position + len(block)], block))
            position += len(block)
        half = len(copies) // 2
        if copiers is None or not half or target[:position].nbytes < _LARGE_BYTES:
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
