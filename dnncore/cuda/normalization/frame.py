"""How a tensor is cut into groups that statistics are taken over, and the parameter struct that says so to a kernel.

A `Cut` says which dimensions are groups; a `Partition` where each operand's elements are over groups and over the elements of one,
which dimension is read in packs of 16 bytes, and how a block's threads share a tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np

from dnncore.cuda.params import ADDRESS, BLEND, DIVISOR, SMALL_DIVISOR, collapse, divisor, record, small_divisor, struct
from dnncore.descriptors import MAX_NDIM, TensorDescriptor
from dnncore.figures import DeviceFigures

__all__ = ["LIKE_X", "PACK_BYTES", "PARAMS", "THREADS", "Cut", "Operand", "Partition", "Switch"]

THREADS = 128
"""Threads per block; kNormalizationThreads in frame.cuh. Few, because each has up to 160 registers: three such blocks fit."""

PACK_BYTES = 16
"""The most that a thread reads or writes at once."""

_WARP = 32
_PACKS_PER_THREAD = 4
"""Packs that a thread has under way at once; kStatisticsPacks in forward.cuh."""

_KEPT_PACKS = 8
"""Of its group that a thread can keep in registers; kKeptPacks in forward_aligned.cuh, kKeptPairs in backward_aligned.cuh."""

_MANY = 0.5
"""Of the threads that the multiprocessors can hold: with so many, each may have all the packs that it can keep."""

_FAR = 2**30
"""Elements, or steps between them, that a walk counts in 32 bits, one step further included."""


class Operand(IntEnum):
    """Operands by their place in the parameter struct; Operand in frame.cuh."""

    X = 0
    DY = 1
    OUTPUT = 2
    SCALE = 3
    BIAS = 4
    MEAN = 5
    INV_STD = 6
    FIRST_OLD = 7
    SECOND_OLD = 8
    FIRST_NEW = 9
    SECOND_NEW = 10
    Y = 11
    Z = 12


class Switch(IntFlag):
    """What a launch does; Switch in frame.cuh says more."""

    REDUCES = 1
    APPLIES = 2
    PACKS_GROUPS = 4
    VARYING_PARAMETERS = 8
    VARYING_STATISTICS = 16
    WEIGHTED = 32
    UNCENTRED = 64
    GIVES_VARIANCE = 128
    RECTIFIES = 256


_FRAME = struct(("extents", DIVISOR, MAX_NDIM), ("strides", "<i8", (len(Operand), MAX_NDIM)), ("ndim", "<i4"))

LIKE_X = (Operand.X, Operand.DY, Operand.OUTPUT, Operand.Y, Operand.Z)
"""Operands of x's dtype; the others are of its compute type, and some may be of either (is_narrow in frame.cuh)."""

_WALKED = (
    LIKE_X,
    (Operand.SCALE, Operand.BIAS),
    (Operand.MEAN, Operand.INV_STD),
)
"""Operands that lie alike where packs are whole; Walked in frame.cuh."""

WALK = struct(
    ("inner", SMALL_DIVISOR),
    ("strides", "<i4", (2, len(_WALKED))),
    ("inner_step", "<i4"),
    ("steps", "<i4", (2, len(_WALKED))),
)

PARAMS = struct(
    *BLEND,
    ("operands", ADDRESS, len(Operand)),
    ("partials", ADDRESS),
    ("totals", ADDRESS),
    ("groups", _FRAME),
    ("elements", _FRAME),
    ("steps", "<i8", len(Operand)),
    ("packed_extent", "<i8"),
    ("tiles", DIVISOR),
    ("group_packs", "<i8"),
    ("element_packs", "<i8"),
    ("parts", "<i8"),
    ("part", "<i8"),
    ("length", "<f8"),
    ("epsilon", "<f8"),
    ("momentum", "<f8"),
    ("parameter_alpha", "<f8"),
    ("parameter_beta", "<f8"),
    ("columns", "<i4"),
    ("switches", "<i4"),
    ("narrow", "<u4"),
    ("sharing", SMALL_DIVISOR),
    ("walk", WALK),
)


@dataclass(frozen=True, slots=True)
class Cut:
    """Which dimensions of a tensor are groups. Immutable.

    Args:
        shape: Extents, one tuple a dimension: several numbers where a dimension is cut into that many.
        groups: Which of them, counted after the cutting, are groups; the others are a group's elements.
    """

    shape: tuple[tuple[int, ...], ...]
    groups: frozenset[int]

    @property
    def extents(self) -> tuple[int, ...]:
        """After the cutting."""
        return tuple(extent for extents in self.shape for extent in extents)

    def strides(self, tensor: TensorDescriptor | None) -> tuple[int, ...]:
        """Strides of an operand after the cutting: 0 along dimensions in which it has extent 1, or one element for each group."""
        if tensor is None:
            return (0,) * len(self.extents)
        found: list[int] = []
        for extents, extent, stride in zip(self.shape, tensor.shape, tensor.strides, strict=True):
            if extent == math.prod(extents):
                found += [stride * math.prod(extents[i + 1 :]) for i in range(len(extents))]
            else:
                found += [stride if extent == extents[0] and len(extents) > 1 else 0, *(0,) * (len(extents) - 1)]
        return tuple(found)


_Frame = tuple[tuple[int, ...], ...]  # extents, then the strides of each operand


@dataclass(frozen=True, slots=True)
class Partition:
    """A tensor, its groups and their elements as a kernel sees them: a function of operands and figures. Immutable."""

    groups: _Frame
    elements: _Frame
    packs_groups: bool
    width: int  # lanes of a pack
    is_aligned: bool  # every pack is whole, and x, dy and the output lie alike
    is_whole: (
        bool  # likewise, but dy may have steps of its own over a group's elements, as a part of another tensor has
    )
    many_threads: int  # with so many in all, each may have all the packs of its group that it can keep

    @classmethod
    def of(
        cls,
        cut: Cut,
        operands: Mapping[Operand, TensorDescriptor],
        figures: DeviceFigures,
        width_bytes: int = PACK_BYTES,
    ) -> Partition:
        """Cut the operands' dimensions; x among them says which dimension is read in packs.

        Args:
            cut: Which dimensions are groups.
            operands: What there is.
            figures: Of the device: where groups are enough to fill its multiprocessors, fewer threads share one.
            width_bytes: Of a pack; the size of an element for no packs at all.
        """
        x = operands[Operand.X]
        strides = [cut.strides(operands.get(operand)) for operand in Operand]
        inside = [axis for axis in range(len(cut.extents)) if axis not in cut.groups]
        groups, elements = (
            collapse(
                [cut.extents[axis] for axis in axes],
                *([tensor[axis] for axis in axes] for tensor in (*strides, strides[Operand.X])),
            )[:-1]
            for axes in (sorted(cut.groups), inside)
        )
        between, within = groups[1 + Operand.X][-1], elements[1 + Operand.X][-1]
        packs_groups = groups[0][-1] > 1 and (elements[0][-1] == 1 or between < within)
        width = max(width_bytes // x.dtype.itemsize, 1)
        is_whole = _lies_whole(groups, elements, packs_groups, width, operands)
        is_aligned = is_whole and (Operand.DY not in operands or elements[1 + Operand.DY] == elements[1 + Operand.X])
        many_threads = int(figures.multiprocessors * figures.threads_per_multiprocessor * _MANY)
        return cls(groups, elements, packs_groups, width, is_aligned, is_whole, many_threads)

    @property
    def group_count(self) -> int:
        """Groups."""
        return math.prod(self.groups[0])

    @property
    def length(self) -> int:
        """Elements of a group."""
        return math.prod(self.elements[0])

    @property
    def group_packs(self) -> int:
        """Groups, or packs of them."""
        return math.prod(self._packed(self.groups)) if self.packs_groups else self.group_count

    @property
    def element_packs(self) -> int:
        """Elements of a group, or packs of them."""
        return self.length if self.packs_groups else math.prod(self._packed(self.elements))

    @property
    def run(self) -> int:
        """Of a group's elements, or packs of them, those that lie in one piece."""
        return self.elements[0][-1] // (1 if self.packs_groups else self.width)

    @property
    def columns(self) -> int:
        """Groups, or packs of them, that a block works on at once: a power of two."""
        if self.packs_groups:
            return min(_WARP, _power_of_two(self.group_packs))
        packs = self.element_packs
        lanes = max(_power_of_two(-(-packs // _PACKS_PER_THREAD)), min(8, _power_of_two(packs)))
        fewer = max(_power_of_two(-(-packs // _KEPT_PACKS)), min(8, _power_of_two(packs)))
        if self.is_aligned and self.group_count * fewer >= self.many_threads:
            lanes = fewer
        return THREADS // min(lanes, THREADS)

    @property
    def lanes(self) -> int:
        """Threads that share a group, or a pack of them."""
        return THREADS // self.columns

    @property
    def tiles(self) -> int:
        """Of as many groups as there are columns."""
        return -(-self.group_packs // self.columns)

    @property
    def keeps(self) -> bool:
        """Whether the threads that share a group can keep it in their registers."""
        return self.is_aligned and not self.packs_groups and self.element_packs <= _KEPT_PACKS * self.lanes

    def parts(self, packs_per_thread: int, most: int) -> int:
        """Into how many parts a group's elements can be cut, for each thread to have so many packs."""
        return max(1, min(self.element_packs // (self.lanes * packs_per_thread), most))

    def varies(self, *operands: Operand) -> bool:
        """Whether one of the operands differs among a group's elements; of no elements, it may have no value for the group."""
        return self.length != 1 and any(any(self.elements[1 + operand]) for operand in operands)

    def params(self, parts: int, switches: Switch, sharing: int = 1) -> np.ndarray:
        """The struct of a launch over parts of the groups, without addresses.

        Args:
            parts: Of each group.
            switches: What the launch does, but for PACKS_GROUPS.
            sharing: Groups, next to each other, that have statistics and totals in common.
        """
        packed = self.groups if self.packs_groups else self.elements
        if self.packs_groups:
            switches |= Switch.PACKS_GROUPS
        return record(
            PARAMS,
            groups=self._frame(self.groups, self.packs_groups),
            elements=self._frame(self.elements, not self.packs_groups),
            steps=[
                strides[-1] if packed[0][-1] != 1 else 0 for strides in packed[1:]
            ],  # a single element has no neighbour
            packed_extent=packed[0][-1],
            tiles=divisor(self.tiles),
            group_packs=self.group_packs,
            element_packs=self.element_packs,
            parts=parts,
            part=-(-self.element_packs // parts),
            length=self.length,
            columns=self.columns,
            switches=switches,
            sharing=small_divisor(sharing),
            walk=self._walk() if self.is_whole else np.zeros((), WALK),
        )

    def _walk(self) -> np.ndarray:
        """How the threads of a team go from pack to pack."""
        extents, width = self.elements[0], 1
        if not self.packs_groups:
            extents, width = self._packed(self.elements), self.width
        inner = extents[-1]
        quotient, remainder = divmod(self.lanes, inner)
        quotient = min(quotient, math.prod(extents[:-1]) - 1)  # one more leads out of the group
        strides: list[tuple[int, int]] = []
        for alike in _WALKED:
            found = max((self.elements[1 + operand] for operand in alike), key=any)
            strides.append((found[0] if len(found) > 1 else 0, found[-1] * width))
        return record(
            WALK,
            inner=small_divisor(inner),
            strides=[[outer for outer, _ in strides], [step for _, step in strides]],
            inner_step=remainder,
            steps=[
                [quotient * outer + remainder * step for outer, step in strides],
                [(quotient + 1) * outer + (remainder - inner) * step for outer, step in strides],
            ],
        )

    def _packed(self, frame: _Frame) -> tuple[int, ...]:
        return (*frame[0][:-1], -(-frame[0][-1] // self.width))

    def _frame(self, frame: _Frame, packed: bool) -> np.ndarray:
        extents, strides = frame[0], frame[1:]
        if packed:
            extents = self._packed(frame)
            strides = tuple((*steps[:-1], steps[-1] * self.width) for steps in strides)
        missing = MAX_NDIM - len(extents)
        return record(
            _FRAME,
            extents=[divisor(extent) for extent in (*extents, *(1,) * missing)],
            strides=[(*steps, *(0,) * missing) for steps in strides],
            ndim=len(extents),
        )


def _lies_whole(
    groups: _Frame, elements: _Frame, packs_groups: bool, width: int, operands: Mapping[Operand, TensorDescriptor]
) -> bool:
    """`Partition.is_whole`, if addresses are multiples of 16 bytes and there are packs; walk.cuh says what for."""
    packed, other = (groups, elements) if packs_groups else (elements, groups)

    def whole(operand: Operand) -> bool:
        return all(stride % width == 0 for stride in (*packed[1 + operand][:-1], *other[1 + operand]))

    def walks(operand: Operand) -> bool:
        """A parameter or statistic has one value for a pack, or neighbours."""
        step = packed[1 + operand][-1]
        return not any(elements[1 + operand]) or step == 0 or (step == 1 and whole(operand))

    def near(operand: Operand) -> bool:
        """32 bits are enough within a group."""
        return sum((e - 1) * abs(s) for e, s in zip(elements[0], elements[1 + operand], strict=True)) < _FAR

    there = [[operand for operand in alike if operand in operands] for alike in _WALKED]
    return (
        len(elements[0]) <= 2
        and 0 < math.prod(elements[0]) < _FAR
        and packed[0][-1] % width == 0
        and all(whole(operand) and packed[1 + operand][-1] == 1 for operand in there[0])
        and len({groups[1 + operand] for operand in there[0]}) == 1
        and all(len({elements[1 + operand] for operand in alike if operand is not Operand.DY}) <= 1 for alike in there)
        and all(near(operand) for alike in there for operand in alike)
        and all(walks(operand) for alike in there[1:] for operand in alike)
    )


def _power_of_two(number: int) -> int:
    """The smallest that is no less than the number."""
    return 1 << max(number - 1, 0).bit_length()
