"""The passes of a normalisation, one after the other, and what they leave to each other in the workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial

import numpy as np

from dnncore.cuda.normalization.cuts import (
    FURTHER,
    SAVED,
    GroupNorm,
    Normalization,
    cut_of,
    is_interleaved,
    of_images,
    only,
    operands_of,
    parameter_cut_of,
)
from dnncore.cuda.normalization.frame import PACK_BYTES, THREADS, Cut, Operand, Partition, Switch
from dnncore.cuda.normalization.pace import Pace
from dnncore.cuda.normalization.passes import CHANNELS_ITEM_BYTES, Pass, Scratch
from dnncore.descriptors import TensorDescriptor
from dnncore.figures import DeviceFigures

__all__ = ["FEWEST_PARTS", "PassSequence"]

_TURNS, _REGISTERS = 2, 128
"""Groups are cut until blocks fill the multiprocessors so many times; of a thread, about [of sm_90a in the gates' baseline]."""

_WARP = 32
FEWEST_PARTS = 4
"""With fewer, two launches more cost what they save."""

_CHANNEL_REGISTERS, _MASKED_CHANNEL_REGISTERS, _CHANNEL_PACKS = 96, 128, 8
"""Of the kernels of channels, of which as many blocks are wanted as fit: registers, and those of kernels that mask dy; packs that a
thread has under way."""

_WITHIN_GROUPS = Switch.VARYING_PARAMETERS | Switch.VARYING_STATISTICS | Switch.UNCENTRED
"""What the kernels of channels do not know; nor do those that reduce know weights."""

_STATISTICS_PACKS, _BROKEN_STATISTICS_PACKS = 4, 2
_APPLY_PACKS = 16
"""Least that a thread has of a part, also where packs are not whole, whose loads are several; when the output is written, of as
many parts as there may be."""

_OF_ACTIVATION = frozenset({Operand.BIAS, Operand.Y, Operand.Z})
"""Which a gradient goes by where an activation followed."""

_WRITTEN = {"forward": SAVED | FURTHER, "backward": FURTHER}
"""Operands that are read or written only where a group's parts are together."""

_NUMBERS = {"forward": 3, "backward": 2}
"""That a group comes to: sizeof(Moments) and sizeof(Sums) of totals.cuh, in elements of the compute type."""


class PassSequence:
    """The passes of a launch as they are put together, and the workspace that is given out. Owned by one thread.

    Args:
        problem: What is normalised.
        figures: Of the device.
        direction: "forward" or "backward".
        in_parts: Whether groups may be cut.
    """

    def __init__(self, problem: Normalization, figures: DeviceFigures, direction: str, in_parts: bool) -> None:
        self.passes: list[Pass] = []
        self._problem = problem
        self._figures = figures
        self._pace = Pace(figures, problem.x.dtype.itemsize)
        self._direction = direction
        self._in_parts = in_parts
        self._end = 0

    def partition(
        self, cut: Cut, operands: Mapping[Operand, TensorDescriptor], width_bytes: int = PACK_BYTES
    ) -> Partition:
        """As `Partition.of`, for this device."""
        return Partition.of(cut, operands, self._figures, width_bytes)

    def add(self, cut: Cut, operands: Mapping[Operand, TensorDescriptor], switches: Switch) -> None:
        """Reduce and apply over a cut: in one pass, or in three where groups are few and parts are allowed."""
        partition = self.partition(cut, operands)
        switches |= _nature(partition, operands)
        parts = self._most_parts(partition, switches) if self._in_parts else 1
        there = frozenset(operands)
        if parts < FEWEST_PARTS:
            self._append(partition, 1, switches, there)
            return
        parts = -(-partition.element_packs // -(-partition.element_packs // parts))
        numbers = partition.group_count * _NUMBERS[self._direction]
        partials, totals = self._scratch(numbers * parts), None
        reduced = switches & ~Switch.APPLIES
        self._append(partition, parts, reduced, there - _WRITTEN[self._direction], partials)
        if Switch.APPLIES in switches and self._direction == "backward":
            totals = self._scratch(numbers)
        self._finish(self.partition(cut, operands, width_bytes=0), parts, switches, there, partials, totals)
        if Switch.APPLIES not in switches:
            return
        switches &= ~Switch.REDUCES
        if self._direction == "backward" and Operand.Z in there:  # where the masked dy is
            rest = {**only(operands, there - _OF_ACTIVATION), Operand.DY: operands[Operand.Z]}
            wanted, in_place_of = frozenset(rest) - FURTHER, {Operand.DY: Operand.Z}
            self.apply(self.partition(cut, rest), switches, wanted, totals, in_place_of=in_place_of)
        else:
            self.apply(partition, switches, there - FURTHER, totals)

    def add_channels(self, problem: GroupNorm, operands: Mapping[Operand, TensorDescriptor]) -> None:
        """Group normalisation by way of what each image's channels have: unlike the groups, they may be neighbours in memory.

        Backward, the same sums serve the gradients of scale and bias.
        """
        cut, sharing = Cut(cut_of(problem).shape, frozenset({0, 1, 2})), problem.x.shape[1] // problem.groups
        forward = self._direction == "forward"
        there = frozenset(operands)
        images = {one: of_images(operands[one]) for one in SAVED} if is_interleaved(problem.x) else {}
        partition = self.partition(cut, {**operands, **images})
        parts = -(
            -partition.element_packs // -(-partition.element_packs // self._most_parts(partition, Switch.REDUCES))
        )
        numbers = partition.group_count * _NUMBERS[self._direction]
        partials, totals = self._scratch(numbers * parts), None
        reads = there - (_WRITTEN[self._direction] | {Operand.OUTPUT, Operand.SCALE, Operand.BIAS})
        steps = {}
        if partition.packs_groups:
            steps = {one: statistic.strides[1] for one, statistic in only(operands, SAVED).items()}
        self._append(partition, parts, Switch.REDUCES, reads, partials, sharing=sharing, steps=steps)
        if forward:
            whole = self.partition(cut_of(problem), operands, width_bytes=0)
            self._finish(whole, parts * sharing, Switch.REDUCES, there - FURTHER, partials, None)
        else:
            found = partials
            if parts > 1:
                found = self._scratch(numbers)
                channels = self.partition(cut, only(operands, {Operand.X}), width_bytes=0)
                self._finish(channels, parts, Switch.REDUCES, frozenset(), partials, found)
            totals = self._scratch(numbers // sharing)
            self._sum_channels(problem, operands, sharing, found, totals)
        switches = Switch.APPLIES if forward else Switch.APPLIES | Switch.WEIGHTED
        self.apply(partition, switches, there - FURTHER, totals, sharing, steps)

    def _sum_channels(
        self,
        problem: GroupNorm,
        operands: Mapping[Operand, TensorDescriptor],
        sharing: int,
        found: Scratch,
        totals: Scratch,
    ) -> None:
        """Put the channels of each group together, and the images of each channel."""
        partition = self.partition(parameter_cut_of(problem), operands, width_bytes=0)
        images = problem.x.shape[0]
        params = self._params(partition, 1, Switch.REDUCES, sharing, others={"parts": images})
        warps = images * problem.groups + partition.group_count
        wanted = FURTHER | {Operand.SCALE}
        blocks = -(-warps // (THREADS // _WARP)) if images else 0
        seconds = self._pace.seconds(2 * found.nbytes, blocks)  # for the groups and for the parameters
        self.passes.append(
            Pass("channels_backward", blocks, seconds, params, frozenset(operands) & wanted, found, totals)
        )

    def apply(
        self,
        partition: Partition,
        switches: Switch,
        wanted: frozenset[Operand],
        totals: Scratch | None = None,
        sharing: int = 1,
        steps: Mapping[Operand, int] | None = None,
        in_place_of: Mapping[Operand, Operand] | None = None,
    ) -> None:
        """Write the output from statistics, or sums, that are there."""
        parts = self._most_parts(partition, switches)
        if not self._goes_by_channels(partition, switches):
            parts = max(partition.parts(_APPLY_PACKS, partition.element_packs), parts)
        self._append(partition, parts, switches, wanted, None, totals, sharing, steps, in_place_of)

    def _most_parts(self, partition: Partition, switches: Switch) -> int:
        """Into how many parts groups can be cut until there are blocks enough for every multiprocessor."""
        turns, registers = _TURNS, _REGISTERS
        packs = _STATISTICS_PACKS if partition.is_aligned else _BROKEN_STATISTICS_PACKS
        if self._goes_by_channels(partition, switches):
            there = operands_of(self._problem)
            masks = Operand.Y in there and not (Switch.REDUCES not in switches and Operand.Z in there)
            turns, registers = 1, _MASKED_CHANNEL_REGISTERS if masks else _CHANNEL_REGISTERS
            packs = _CHANNEL_PACKS
        figures = self._figures
        blocks = turns * figures.multiprocessors * figures.resident_blocks(THREADS, registers)
        return partition.parts(packs, blocks // max(partition.tiles, 1))

    def _append(
        self,
        partition: Partition,
        parts: int,
        switches: Switch,
        wanted: frozenset[Operand],
        partials: Scratch | None = None,
        totals: Scratch | None = None,
        sharing: int = 1,
        steps: Mapping[Operand, int] | None = None,
        in_place_of: Mapping[Operand, Operand] | None = None,
    ) -> None:
        reduces, applies = Switch.REDUCES in switches, Switch.APPLIES in switches
        adds = self._direction == "forward" and Operand.Z in wanted
        keeps = reduces and applies and parts == 1 and partition.keeps and not adds
        aligned = f"{self._direction}_{'kept' if keeps else 'aligned'}" if partition.is_aligned else None
        is_half = reduces != applies and reduces == (partials is not None)
        by_channels = is_half and self._goes_by_channels(partition, switches)
        if by_channels:
            aligned = self._channel_kernel(applies, wanted)
        params = self._params(partition, parts, switches, sharing, steps, {"length": partition.length * sharing})
        blocks = partition.tiles * parts if reduces or partition.length else 0
        goes_by_y = Operand.Y in wanted and not (by_channels and Operand.BIAS in wanted)
        read = (1 + (Operand.DY in wanted) + goes_by_y) * (reduces + applies - keeps)
        once = applies + (Operand.Z in wanted and (applies if adds else reduces))
        nbytes = (read + once) * self._problem.x.size * self._problem.x.dtype.itemsize
        reach = self._pace.reach(partition)
        if by_channels:
            reach = self._pace.reach_of_channels(masks=self._direction == "backward" and Operand.Y in wanted)
        seconds = self._pace.seconds(nbytes, blocks, reach)
        early = by_channels and self._figures.starts_early
        self.passes.append(
            Pass(self._direction, blocks, seconds, params, wanted, partials, totals, aligned, early, in_place_of or {})
        )

    def _channel_kernel(self, applies: bool, wanted: Set[Operand]) -> str:
        """The last words of the name of the kernel of channels for a pass."""
        if self._direction == "forward":
            if not applies:
                return "channels_moments"
            return "channels_normalize_added" if Operand.Z in wanted else "channels_normalize"
        mask = "" if Operand.Y not in wanted else "_by_line" if Operand.BIAS in wanted else "_by_y"
        return f"channels_{'gradient' if applies else 'sums'}{mask}"

    def _finish(
        self,
        partition: Partition,
        parts: int,
        switches: Switch,
        wanted: frozenset[Operand],
        partials: Scratch,
        totals: Scratch | None,
    ) -> None:
        """Put the parts of each group together, a warp per group."""
        params = self._params(partition, 1, switches, others={"parts": parts})
        blocks = -(-partition.group_count // (THREADS // _WARP))
        seconds = self._pace.seconds(partials.nbytes, blocks)
        kernel, early = f"finish_{self._direction}", self._figures.starts_early
        self.passes.append(Pass(kernel, blocks, seconds, params, wanted, partials, totals, starts_early=early))

    def _goes_by_channels(self, partition: Partition, switches: Switch) -> bool:
        """Whether there are kernels of channels for such passes: their groups are neighbours, and each row has all of them."""
        is_dense = partition.is_whole and partition.packs_groups and len(partition.elements[0]) == 1
        has_kernels = self._problem.x.dtype.itemsize in CHANNELS_ITEM_BYTES
        weighs = Switch.REDUCES | Switch.WEIGHTED in switches
        # A mask that follows neither from bias nor from what dz holds is known to the other kernels alone.
        there = _OF_ACTIVATION & operands_of(self._problem).keys()
        is_known = self._direction == "forward" or there != {Operand.Y}
        return is_dense and has_kernels and is_known and not weighs and not switches & _WITHIN_GROUPS

    def _params(
        self,
        partition: Partition,
        parts: int,
        switches: Switch,
        sharing: int = 1,
        steps: Mapping[Operand, int] | None = None,
        others: Mapping[str, int] | None = None,
    ) -> Callable[[], np.ndarray]:
        """What makes a pass's struct: `others` are fields that are not what the partition says, and so are `steps`."""
        return partial(_fill, self._problem, partition, parts, switches, sharing, steps or {}, others or {})

    def _scratch(self, numbers: int) -> Scratch:
        piece = Scratch(self._end, numbers * self._problem.x.dtype.compute.itemsize)
        self._end = piece.end
        return piece


def _fill(
    problem: Normalization,
    partition: Partition,
    parts: int,
    switches: Switch,
    sharing: int,
    steps: Mapping[Operand, int],
    others: Mapping[str, int],
) -> np.ndarray:
    """The struct of a pass, without addresses and `narrow`."""
    params = partition.params(parts, switches, sharing)
    for name in ("epsilon", "momentum", "parameter_alpha", "parameter_beta"):
        params[name] = getattr(problem, name, 0.0)
    if not problem.x.size:  # of an empty batch nothing comes into the running statistics
        params["momentum"] = 0.0
    for name, value in others.items():
        params[name] = value
    for operand, step in steps.items():
        params["steps"][operand] = step
    return params


def _nature(partition: Partition, operands: Mapping[Operand, TensorDescriptor]) -> Switch:
    """Switches that say what varies within a group."""
    found = Switch(0)
    if partition.varies(Operand.SCALE, Operand.BIAS):
        found |= Switch.VARYING_PARAMETERS
    if partition.varies(*SAVED):
        found |= Switch.VARYING_STATISTICS
    if Operand.MEAN not in operands:
        found |= Switch.UNCENTRED
    return found
