"""What sums and reductions share: which dimensions are kept and which go, and what shares out the elements of an output.

The elements of each output are cut into parts. A thread, or a block, takes a part at a time; where there are several, what became
of them is left in the workspace, [splits, outputs], and a second kernel puts together what belongs to an output.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for
from dnncore.cuda.params import collapse, divisor, view
from dnncore.cuda.traffic import touched_bytes
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = ["BLOCK", "NEXT_LAUNCH", "OF_MEMORY_RATE", "THREAD", "Geometry", "InParts", "Pace", "Partition", "Team"]

_SHORT = 32
"""Reductions of up to this many elements would leave most of a block idle."""

OF_MEMORY_RATE = 0.83
"""Of the memory rate [measured on an H200: sums of 2^26 elements and bias gradients]."""

NEXT_LAUNCH = 0.4
"""Launches that a kernel costs right behind another one [measured on an H200, in a CUDA graph: 1.6 us]."""

_Views = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Team:
    """What takes a part of an output's elements. Immutable.

    Args:
        name: "thread" or "block".
        size: Threads of it.
    """

    name: str
    size: int

    def abreast(self, figures: DeviceFigures) -> int:
        """How many a device runs at a time."""
        return figures.multiprocessors * (figures.threads_per_multiprocessor // self.size)


THREAD, BLOCK = Team("thread", 1), Team("block", 256)


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
        """None where a thread per output reads well, else the reason why not."""
        side_by_side = self.kept[1][-1] == 1 and self.kept[0][-1] >= _SHORT
        if self.length <= _SHORT or side_by_side:
            return None
        return f"{self.length} elements per output are more than {_SHORT} and do not lie side by side"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a family's kernels take, as fitted to measurements, and with what they accumulate. Immutable.

    Args:
        step: From an element of a team's thread to its next one, in launches.
        turn: What a block takes for a part however short it is, in launches.
        products: Multiply-adds in whose time the device takes an element when all of it is busy.
        finisher: What puts the parts of an output together.
        math: See `backend.Offer`.
    """

    step: float
    turn: float
    products: int
    finisher: Team
    math: str


@dataclass(frozen=True, slots=True)
class Partition:
    """A reduction whose outputs' elements are shared out. Immutable.

    Args:
        team: What takes a part.
        geometry: What is reduced.
        splits: Parts of each output.
        part: Elements of each; the last may have fewer.
    """

    team: Team
    geometry: Geometry
    splits: int
    part: int

    @property
    def num_parts(self) -> int:
        """Of all outputs together."""
        return self.splits * self.geometry.outputs

    def blocks(self, figures: DeviceFigures, threads: int) -> int:
        """Blocks, of so many threads, that take the parts."""
        return blocks_for(figures, self.num_parts, threads // self.team.size)

    def of_parts(self, team: Team) -> Partition:
        """The reduction of what is in the workspace, by a team per output."""
        outputs, splits = self.geometry.outputs, self.splits
        return Partition(team, Geometry(((outputs,), (1,), (1,)), ((splits,), (outputs,))), 1, splits)

    def fields(self) -> dict[str, Any]:
        """Of the parameters of sums: those that the partition says."""
        extents, x_strides, *_ = self.geometry.kept
        return {
            "outputs": divisor(self.geometry.outputs),
            "length": self.geometry.length,
            "splits": self.splits,
            "part": self.part,
            "kept_view": view(extents, x_strides),
        }

    def seconds(self, figures: DeviceFigures, pace: Pace, itemsize: int) -> float:
        """Estimated time of the launch, or of the two."""
        elements = self.geometry.outputs * self.geometry.length
        kept, reduced = (views[1][-1] for views in (self.geometry.kept, self.geometry.reduced))
        nbytes = touched_bytes(elements, itemsize, min(kept, reduced) if self.team is THREAD else reduced)
        seconds = figures.launch_seconds + max(
            nbytes / (figures.bytes_per_second * OF_MEMORY_RATE),
            elements * pace.products / figures.products_per_second(Maths.FP32),
            self._stepping(figures, pace),
        )
        if self.splits > 1:
            seconds += NEXT_LAUNCH * figures.launch_seconds + self.of_parts(pace.finisher)._stepping(figures, pace)
        return seconds

    def _stepping(self, figures: DeviceFigures, pace: Pace) -> float:
        """Time in which the teams take their parts, if nothing but their own steps holds them up."""
        turns = -(-self.num_parts // self.team.abreast(figures))
        steps = -(-self.part // self.team.size) * pace.step + (pace.turn if self.team is BLOCK else 0)
        return turns * steps * figures.launch_seconds


@dataclass(frozen=True, slots=True)
class InParts(ABC):
    """A way to share out the elements of a reduction's outputs; a family adds its kernels. Immutable.

    Args:
        name: See `backend.Algorithm`.
        team: What takes a part.
        min_part: Fewest elements that are worth its while.
        turns: Of all outputs together, as many parts as teams take in so many turns keep the device busy; 0 never cuts an output,
            and takes no workspace.
    """

    name: str
    team: Team
    min_part: int
    turns: int
    pace: ClassVar[Pace]

    @classmethod
    def all(cls) -> tuple[Self, ...]:
        """The algorithms of a family."""
        return (
            cls("thread_per_output", THREAD, min_part=64, turns=1),
            cls("block_per_output", BLOCK, min_part=16384, turns=2),
            cls("block_per_output_whole", BLOCK, min_part=1, turns=0),
        )

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`.

        The parts are a function of the problem and of how many threads the device runs at a time: results are the same, bit for
        bit, on devices that run as many.
        """
        (x,), (y, *others) = problem.inputs, problem.outputs
        geometry = Geometry.of(x, y, *others)
        reason = geometry.suits_threads if self.team is THREAD else None
        if reason is not None:
            return reason
        most = self.turns * self.team.abreast(figures)
        wanted = min(most // max(geometry.outputs, 1), geometry.length // self.min_part)
        part = -(-geometry.length // max(wanted, 1))
        partition = Partition(self.team, geometry, -(-geometry.length // part) if part else 1, part)
        return Offer(
            partition.seconds(figures, self.pace, x.dtype.itemsize),
            partial(self.calls, problem, figures, partition),
            partition.num_parts * self.part_bytes(x.dtype) if partition.splits > 1 else 0,
            math=self.pace.math,
        )

    @abstractmethod
    def part_bytes(self, dtype: DType) -> int:
        """What a part leaves in the workspace."""

    @abstractmethod
    def calls(self, problem: Any, figures: DeviceFigures, partition: Partition) -> Calls:
        """The kernels that take the parts, and put them together where there are several."""
