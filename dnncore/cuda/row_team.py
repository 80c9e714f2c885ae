"""Rows one behind the other, each in a team of threads' registers (`common/row_team.cuh`): which can, how they are shared out."""

from __future__ import annotations

from typing import NamedTuple

from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures

__all__ = ["DTYPES", "THREADS", "RowTeams"]

DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)

THREADS = 128
"""Of a block; kTeamThreads in row_team.cuh."""

_ELEMENTS = 32
"""Of a row, that a thread has at most; kTeamElements there."""

_PACK_BYTES, _WARP = 16, 32

_LEAST_PACKS = 64
"""Of a row: two for each lane of a warp, lest too little be under way [assumed; measured were rows of 125 packs and more]."""

_OF_THREADS = 0.5
"""Share of the threads that a multiprocessor may have, which take the full rate [assumed; seven or more blocks fit]."""


class RowTeams(NamedTuple):
    """How rows are shared out. Immutable.

    Args:
        rows: How many there are.
        length: Elements of one.
        dtype: Of the elements.
    """

    rows: int
    length: int
    dtype: DType

    @property
    def packs(self) -> int:
        """Of a row: 16 bytes each."""
        return self.length * self.dtype.itemsize // _PACK_BYTES

    @property
    def lanes(self) -> int:
        """Threads of a team: a power of two from a warp on."""
        return max(1 << (-(-self.length // _ELEMENTS) - 1).bit_length(), _WARP)

    @property
    def blocks(self) -> int:
        """Of a launch."""
        return -(-self.rows // (THREADS // self.lanes))

    def why_not(self) -> str | None:
        """None where the kernels can take such rows, else the reason why not."""
        if self.dtype not in DTYPES:
            return f"x is of {self.dtype.value}; there are kernels for {', '.join(dtype.value for dtype in DTYPES)}"
        width = _PACK_BYTES // self.dtype.itemsize
        if self.length % width:
            return f"rows of {self.length} elements are no whole packs of {width}"
        least, most = _LEAST_PACKS * width, THREADS * _ELEMENTS
        if not least <= self.length <= most:
            return f"rows of {self.length} elements are not {least} to {most} long"
        if not 0 < self.rows < 2**31:
            return f"there are {self.rows} rows"
        return None

    def busy(self, figures: DeviceFigures) -> float:
        """The part of the memory's rate that so many threads can take."""
        enough = figures.multiprocessors * figures.threads_per_multiprocessor * _OF_THREADS
        return min(self.rows * self.lanes / enough, 1.0)
