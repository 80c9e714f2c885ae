"""A reduction's geometry: which dimensions are kept, which go, and into how many parts each output's elements are cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnncore.cuda.params import collapse
from dnncore.descriptors import TensorDescriptor

__all__ = ["SHORT", "Geometry", "Team", "parts"]

SHORT = 32
"""Reductions of up to this many elements would leave most of a block idle."""

_Views = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Team:
    """What takes a part of an output's elements. Immutable.

    Args:
        name: "thread" or "block".
        threads: Threads a block.
    """

    name: str
    threads: int

    @property
    def parts_per_block(self) -> int:
        """Parts that a block takes at a time."""
        return self.threads if self.name == "thread" else 1


@dataclass(frozen=True, slots=True)
class Geometry:
    """A reduction with as few dimensions as possible. Immutable."""

    kept: _Views  # extents, strides in x, in further outputs, in y
    reduced: _Views  # extents, strides in x

    @classmethod
    def of(cls, x: TensorDescriptor, y: TensorDescriptor, *others: TensorDescriptor) -> Geometry:
        """Those of reducing x over the dimensions in which y has extent 1; `others` are further outputs of y's shape."""
        kept = [axis for axis in range(x.ndim) if y.shape[axis] == x.shape[axis]]
        reduced = [axis for axis in range(x.ndim) if axis not in kept]
        return cls(
            collapse([x.shape[a] for a in kept], *([t.strides[a] for a in kept] for t in (x, *others, y))),
            collapse([x.shape[a] for a in reduced], [x.strides[a] for a in reduced]),
        )

    @property
    def outputs(self) -> int:
        """Elements of y."""
        return math.prod(self.kept[0])

    @property
    def length(self) -> int:
        """Elements of x that become one of y."""
        return math.prod(self.reduced[0])

    @property
    def suits_threads(self) -> str | None:
        """None where a thread an output reads well, else the reason why not."""
        side_by_side = self.kept[1][-1] == 1 and self.kept[0][-1] >= SHORT
        if self.length <= SHORT or side_by_side:
            return None
        return f"{self.length} elements an output are more than {SHORT} and do not lie side by side"


def parts(geometry: Geometry, min_part: int, max_items: int) -> tuple[int, int]:
    """How many parts, and elements of each: a function of the problem alone, so that results are the same everywhere.

    Args:
        geometry: Of the reduction.
        min_part: Fewest elements that are worth a thread's, or a block's, while.
        max_items: Parts of all outputs together that keep an H200 busy; 0 never cuts an output.
    """
    wanted = min(max_items // max(geometry.outputs, 1), geometry.length // min_part)
    part = -(-geometry.length // max(wanted, 1))
    return (-(-geometry.length // part) if part else 1), part
