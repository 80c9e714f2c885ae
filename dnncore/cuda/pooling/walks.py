"""How pooling whose threads walk down rows is cut into threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnncore.cuda.params import SMALL_DIVISOR, small_divisor
from dnncore.figures import DeviceFigures

__all__ = ["WALK_FIELDS", "Walks", "resident_threads"]

_GROUP = range(8, 33)
"""Vectors of channels that neighbouring threads take before they go on to the next strip."""


WALK_FIELDS: tuple[tuple[str, str | np.dtype], ...] = (
    *((name, SMALL_DIVISOR) for name in ("vectors", "strips", "groups", "walks")),
    ("walk", "<i4"),
)
"""Of the parameter structs of kernels whose threads have vectors of channels; `items` is another, further on."""


def resident_threads(figures: DeviceFigures, threads: int, registers: int) -> int:
    """Threads, of blocks of so many with so many registers each, that have a place on the device at a time."""
    return figures.multiprocessors * figures.resident_blocks(threads, registers) * threads


@dataclass(frozen=True, slots=True)
class Walks:
    """Who computes what. Immutable.

    Args:
        vectors: Of channels, of a group.
        groups: Of all channels.
        strips: Of a row of what is computed.
        walk: Rows, or steps of several, that a thread walks down.
        walks: Of a column of them.
        items: Threads.
    """

    vectors: int
    groups: int
    strips: int
    walk: int
    walks: int
    items: int

    @classmethod
    def of(
        cls, shape: tuple[int, ...], width: int | None, *, columns: int, at_once: int, most: int, resident: int
    ) -> Walks:
        """Walks are as long as leaves no thread waiting for a place, so that few rows are loaded twice.

        Args:
            shape: (images, channels, rows or steps, columns).
            width: Channels of a vector; None of planes, whose strips neighbouring threads take.
            columns: Of a strip.
            at_once: Rows of which a walk has a multiple.
            most: Rows of a walk where not all threads have a place at once.
            resident: Threads that have one.
        """
        images, channels, rows, all_columns = shape
        all_vectors, vectors = channels, 1
        if width is not None:
            all_vectors //= width
            vectors = max((number for number in _GROUP if all_vectors % number == 0), default=all_vectors)
        strips = -(-all_columns // columns)
        whole = images * all_vectors * strips
        pieces = resident // whole if whole <= resident else -(-rows // most)
        walk = -(-rows // (pieces * at_once)) * at_once
        walks = -(-rows // walk)
        return cls(vectors, all_vectors // vectors, strips, walk, walks, whole * walks)

    @property
    def fields(self) -> dict[str, tuple[int, int, int] | int]:
        """By WALK_FIELDS, and `items`."""
        return {
            "vectors": small_divisor(self.vectors),
            "strips": small_divisor(self.strips),
            "groups": small_divisor(self.groups),
            "walks": small_divisor(self.walks),
            "walk": self.walk,
            "items": self.items,
        }

    def why_not(self, threads: int) -> str | None:
        """None where a launch of blocks of so many threads has a thread for each, else the reason why not."""
        most = 2**31 - threads
        return None if self.items <= most else f"{self.items} walks; at most {most}"
