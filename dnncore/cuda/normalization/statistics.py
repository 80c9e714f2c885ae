"""Batch, layer and group normalisation: which elements are normalised together, and in how many launches.

`whole` is one launch (for parameters' gradients of layer and group normalisation one more) without workspace: a block takes whole
groups. `parts` cuts groups that are few and large, so that there is work for every multiprocessor: how often is a function of
the problem and of the number of multiprocessors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial

import numpy as np

from dnncore.backend import Offer
from dnncore.cuda.normalization.frame import PACK_BYTES, THREADS, Cut, Operand, Partition, Switch
from dnncore.cuda.normalization.passes import (
    CHANNELS_ITEM_BYTES,
    Pass,
    Scratch,
    all_passes,
    calls_of,
    places_of,
)
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.figures import DeviceFigures
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
)
from dnncore.problems.normalization.batch_norm import batch_norm_axes

__all__ = ["BACKWARD", "FORWARD", "INFERENCE", "GroupStatistics", "Inference"]

_BatchNorm = BatchNormForwardProblem | BatchNormBackwardProblem | BatchNormInferenceProblem
_Backward = BatchNormBackwardProblem | LayerNormBackwardProblem | GroupNormBackwardProblem
_GroupNorm = GroupNormForwardProblem | GroupNormBackwardProblem
_Statistics = _Backward | BatchNormForwardProblem | LayerNormForwardProblem | GroupNormForwardProblem
_Normalization = _Statistics | BatchNormInferenceProblem

_BLOCKS = 8
"""Per multiprocessor, which fill it twice."""

_WARP = 32
_FEWEST_PARTS = 4
"""With fewer, two launches more cost what they save."""

_CHANNEL_BLOCKS, _MASKED_CHANNEL_BLOCKS, _CHANNEL_PACKS = 5, 4, 8
"""Of the kernels of channels: blocks per multiprocessor, as many as fit, and as fit of those that mask dy; packs that a thread has
under way."""

_WITHIN_GROUPS = Switch.WEIGHTED | Switch.VARYING_PARAMETERS | Switch.VARYING_STATISTICS | Switch.UNCENTRED
"""What the kernels of channels do not know."""

_STATISTICS_PACKS = 4
_APPLY_PACKS = 16
"""Least that a thread has of a part; when the output is written, of as many parts as there may be."""

_OF_MEMORY_RATE = {2: 0.68, 4: 0.85, 8: 0.85}
"""By the bytes of an element; fitted on an H200."""

_BROKEN = 0.6
_SCATTERED_PER_BYTE = 0.0375
"""Of that, where packs are not whole; and, times the bytes of an element, where neighbours in a pack are not neighbours in memory:
then each costs the same, however small. Measured there earlier."""

_REACH_OF_CHANNELS = 1.4
"""Likewise, of the kernels of channels; fitted to the layers of ResNet-50 at batch 128 on an H200."""

_BLOCKS_AT_FULL_RATE = 5
"""Per multiprocessor; fewer reach the less of the memory's rate. Fitted on an H200."""

_SAVED = frozenset({Operand.MEAN, Operand.INV_STD})
_FURTHER = frozenset({Operand.FIRST_OLD, Operand.SECOND_OLD, Operand.FIRST_NEW, Operand.SECOND_NEW})
_OF_ACTIVATION = frozenset({Operand.BIAS, Operand.Y, Operand.Z})
"""Which a gradient goes by where an activation followed."""

_WRITTEN = {"forward": _SAVED | _FURTHER, "backward": _FURTHER}
"""Operands that are read or written only where a group's parts are together."""

_NUMBERS = {"forward": 3, "backward": 2}
"""That a group comes to: sizeof(Moments) and sizeof(Sums) of totals.cuh, in elements of the compute type."""


def _cut(problem: _Normalization) -> Cut:
    """What is normalised together."""
    x = problem.x
    whole = tuple((extent,) for extent in x.shape)
    if isinstance(problem, _BatchNorm):
        return Cut(whole, frozenset(range(x.ndim)) - frozenset(batch_norm_axes(x, problem.mode)))
    if isinstance(problem, LayerNormForwardProblem | LayerNormBackwardProblem):
        return Cut(whole, frozenset(range(problem.axis)))
    channels = (problem.groups, x.shape[1] // problem.groups)
    return Cut((whole[0], channels, *whole[2:]), frozenset({0, 1}))


def _parameter_cut(problem: LayerNormBackwardProblem | _GroupNorm) -> Cut:
    """What shares a scale."""
    cut = _cut(problem)
    if isinstance(problem, LayerNormBackwardProblem):
        return Cut(cut.shape, frozenset(range(len(cut.shape))) - cut.groups)
    return Cut(cut.shape, frozenset({1, 2}))


def _operands(problem: _Normalization) -> dict[Operand, TensorDescriptor]:
    tensors = (*problem.inputs, *problem.outputs)
    return {operand: tensors[place] for operand, place in places_of(problem).items()}


class _Sequence:
    """The passes of a launch as they are put together, and the workspace that is given out."""

    def __init__(self, problem: _Normalization, figures: DeviceFigures, direction: str, in_parts: bool) -> None:
        self.passes: list[Pass] = []
        self._problem = problem
        self._figures = figures
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
        if parts < _FEWEST_PARTS:
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
            rest = {**_only(operands, there - _OF_ACTIVATION), Operand.DY: operands[Operand.Z]}
            wanted, in_place_of = frozenset(rest) - _FURTHER, {Operand.DY: Operand.Z}
            self.apply(self.partition(cut, rest), switches, wanted, totals, in_place_of=in_place_of)
        else:
            self.apply(partition, switches, there - _FURTHER, totals)

    def add_channels(self, problem: _GroupNorm, operands: Mapping[Operand, TensorDescriptor]) -> None:
        """Group normalisation by way of what each image's channels have: unlike the groups, they may be neighbours in memory.

        Backward, the same sums serve the gradients of scale and bias.
        """
        cut, sharing = Cut(_cut(problem).shape, frozenset({0, 1, 2})), problem.x.shape[1] // problem.groups
        forward = self._direction == "forward"
        there = frozenset(operands)
        images = {one: _of_images(operands[one]) for one in _SAVED} if _interleaved(problem.x) else {}
        partition = self.partition(cut, {**operands, **images})
        parts = -(
            -partition.element_packs
            // -(-partition.element_packs // self._most_parts(partition, Switch.REDUCES, sharing))
        )
        numbers = partition.group_count * _NUMBERS[self._direction]
        partials, totals = self._scratch(numbers * parts), None
        reads = there - (_WRITTEN[self._direction] | {Operand.OUTPUT, Operand.SCALE, Operand.BIAS})
        steps = {}
        if partition.packs_groups:
            steps = {one: statistic.strides[1] for one, statistic in _only(operands, _SAVED).items()}
        self._append(partition, parts, Switch.REDUCES, reads, partials, sharing=sharing, steps=steps)
        if forward:
            whole = self.partition(_cut(problem), operands, width_bytes=0)
            self._finish(whole, parts * sharing, Switch.REDUCES, there - _FURTHER, partials, None)
        else:
            found = partials
            if parts > 1:
                found = self._scratch(numbers)
                channels = self.partition(cut, _only(operands, {Operand.X}), width_bytes=0)
                self._finish(channels, parts, Switch.REDUCES, frozenset(), partials, found)
            totals = self._scratch(numbers // sharing)
            self._sum_channels(problem, operands, sharing, found, totals)
        switches = Switch.APPLIES if forward else Switch.APPLIES | Switch.WEIGHTED
        self.apply(partition, switches, there - _FURTHER, totals, sharing, steps)

    def _sum_channels(
        self,
        problem: _GroupNorm,
        operands: Mapping[Operand, TensorDescriptor],
        sharing: int,
        found: Scratch,
        totals: Scratch,
    ) -> None:
        """Put the channels of each group together, and the images of each channel."""
        partition = self.partition(_parameter_cut(problem), operands, width_bytes=0)
        images = problem.x.shape[0]
        params = self._params(partition, 1, Switch.REDUCES, sharing, others={"parts": images})
        warps = images * problem.groups + partition.group_count
        wanted = _FURTHER | {Operand.SCALE}
        blocks = -(-warps // (THREADS // _WARP)) if images else 0
        seconds = self._seconds(2 * found.nbytes, blocks)  # for the groups and for the parameters
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
        parts = self._most_parts(partition, switches, sharing)
        if not self._goes_by_channels(partition, switches, sharing):
            parts = max(partition.parts(_APPLY_PACKS, partition.element_packs), parts)
        self._append(partition, parts, switches, wanted, None, totals, sharing, steps, in_place_of)

    def _most_parts(self, partition: Partition, switches: Switch, sharing: int = 1) -> int:
        """Into how many parts groups can be cut until there are blocks enough for every multiprocessor."""
        per_multiprocessor, packs = _BLOCKS, _STATISTICS_PACKS
        if self._goes_by_channels(partition, switches, sharing):
            there = _operands(self._problem)
            masks = Operand.Y in there and not (Switch.REDUCES not in switches and Operand.Z in there)
            per_multiprocessor, packs = _MASKED_CHANNEL_BLOCKS if masks else _CHANNEL_BLOCKS, _CHANNEL_PACKS
        return partition.parts(packs, self._figures.multiprocessors * per_multiprocessor // max(partition.tiles, 1))

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
        by_channels = is_half and self._goes_by_channels(partition, switches, sharing)
        if by_channels:
            aligned = self._channel_kernel(applies, wanted)
        params = self._params(partition, parts, switches, sharing, steps, {"length": partition.length * sharing})
        blocks = partition.tiles * parts if reduces or partition.length else 0
        goes_by_y = Operand.Y in wanted and not (by_channels and Operand.BIAS in wanted)
        read = (1 + (Operand.DY in wanted) + goes_by_y) * (reduces + applies - keeps)
        once = applies + (Operand.Z in wanted and (applies if adds else reduces))
        nbytes = (read + once) * self._problem.x.size * self._problem.x.dtype.itemsize
        reach = self._reach(partition)
        if by_channels:  # whose masking ones, assumed, need no more blocks than fit
            masks = self._direction == "backward" and Operand.Y in wanted
            reach = _REACH_OF_CHANNELS * (_BLOCKS_AT_FULL_RATE / _MASKED_CHANNEL_BLOCKS if masks else 1.0)
        seconds = self._seconds(nbytes, blocks, reach)
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
        """Put the parts of each group together, a warp a group."""
        params = self._params(partition, 1, switches, others={"parts": parts})
        blocks = -(-partition.group_count // (THREADS // _WARP))
        seconds = self._seconds(partials.nbytes, blocks)
        kernel, early = f"finish_{self._direction}", self._figures.starts_early
        self.passes.append(Pass(kernel, blocks, seconds, params, wanted, partials, totals, starts_early=early))

    def _goes_by_channels(self, partition: Partition, switches: Switch, sharing: int = 1) -> bool:
        """Whether there are kernels of channels for such passes: their groups are neighbours, and each row has all of them."""
        is_dense = partition.is_aligned and partition.packs_groups and len(partition.elements[0]) == 1
        is_narrow = self._problem.x.dtype.itemsize == CHANNELS_ITEM_BYTES
        # A mask that follows neither from bias nor from what dz holds is known to the other kernels alone.
        there = _OF_ACTIVATION & _operands(self._problem).keys()
        is_known = self._direction == "forward" or there != {Operand.Y}
        return is_dense and is_narrow and is_known and sharing == 1 and not switches & _WITHIN_GROUPS

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

    def _reach(self, partition: Partition) -> float:
        """Of the rate of whole packs, what loads as the partition has them reach."""
        if partition.is_aligned:
            return 1.0
        packed = partition.groups if partition.packs_groups else partition.elements
        if packed[1 + Operand.X][-1] == 1 and packed[0][-1] >= partition.width:
            return _BROKEN
        return _SCATTERED_PER_BYTE * self._problem.x.dtype.itemsize

    def _seconds(self, nbytes: int, blocks: int, reach: float = 1.0) -> float:
        """Estimated time of a pass: nothing where there is nothing to do.

        Args:
            nbytes: Read and written.
            blocks: Of the grid.
            reach: Of the rate that whole packs are moved at.
        """
        if not blocks:
            return 0.0
        busy = min(blocks / (self._figures.multiprocessors * _BLOCKS_AT_FULL_RATE), 1.0)
        rate = self._figures.bytes_per_second * _OF_MEMORY_RATE[self._problem.x.dtype.itemsize]
        return self._figures.launch_seconds + nbytes / (rate * reach * busy)

    def _scratch(self, numbers: int) -> Scratch:
        piece = Scratch(self._end, numbers * self._problem.x.dtype.compute.itemsize)
        self._end = piece.end
        return piece


def _fill(
    problem: _Normalization,
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


def _interleaved(x: TensorDescriptor) -> bool:
    """Whether an image's channels are neighbours, places follow, and images come last."""
    places = [stride for extent, stride in zip(x.shape[2:], x.strides[2:], strict=True) if extent > 1]
    return x.strides[1] == 1 and min(places) >= x.shape[1] and (x.shape[0] == 1 or x.strides[0] > max(places))


def _by_channels(problem: _Statistics) -> bool:
    """Whether sums of channels are worth more launches, and can be put together: in the order of images, then of channels."""
    if not isinstance(problem, _GroupNorm):
        return False
    x = problem.x
    places = math.prod(x.shape[2:])
    if 0 in x.shape or places == 1 or problem.groups == x.shape[1]:
        return False
    if _interleaved(x):
        return x.shape[1] < 2**31
    return isinstance(problem, GroupNormBackwardProblem) and x == TensorDescriptor.packed(x.shape, x.dtype)


def _of_images(statistic: TensorDescriptor) -> TensorDescriptor:
    """A statistic as it changes from image to image; within one, `Partition.params` is told how many channels share it."""
    shape = (statistic.shape[0], *(1,) * (statistic.ndim - 1))
    return TensorDescriptor(statistic.dtype, shape, statistic.strides)


def _nature(partition: Partition, operands: Mapping[Operand, TensorDescriptor]) -> Switch:
    """Switches that say what varies within a group."""
    found = Switch(0)
    if partition.varies(Operand.SCALE, Operand.BIAS):
        found |= Switch.VARYING_PARAMETERS
    if partition.varies(*_SAVED):
        found |= Switch.VARYING_STATISTICS
    if Operand.MEAN not in operands:
        found |= Switch.UNCENTRED
    return found


def _sequence(problem: _Statistics, figures: DeviceFigures, in_parts: bool) -> list[Pass]:
    """The passes of a problem."""
    direction = "backward" if isinstance(problem, _Backward) else "forward"
    sequence = _Sequence(problem, figures, direction, in_parts)
    operands, both = _operands(problem), Switch.REDUCES | Switch.APPLIES
    if in_parts and _by_channels(problem):
        assert isinstance(problem, _GroupNorm)
        sequence.add_channels(problem, operands)
        return sequence.passes
    if isinstance(problem, LayerNormBackwardProblem | GroupNormBackwardProblem):
        if problem.dscale is not None or problem.dbias is not None:  # first, because dx may be dy
            wanted = {Operand.X, Operand.DY} | _SAVED | _FURTHER
            sequence.add(_parameter_cut(problem), _only(operands, wanted), Switch.REDUCES)
        sequence.add(_cut(problem), _only(operands, operands.keys() - _FURTHER), both | Switch.WEIGHTED)
    else:
        has_relu = isinstance(problem, BatchNormForwardProblem) and problem.activation is not None
        sequence.add(_cut(problem), operands, both | Switch.RECTIFIES if has_relu else both)
    return sequence.passes


def _only(operands: Mapping[Operand, TensorDescriptor], wanted: Set[Operand]) -> dict[Operand, TensorDescriptor]:
    return {operand: tensor for operand, tensor in operands.items() if operand in wanted}


def _offer(passes: list[Pass], problem: _Normalization, direction: str) -> Offer:
    prepare = partial(calls_of, tuple(passes), problem, direction, problem.x.dtype)
    return Offer(sum(one.seconds for one in passes), prepare, max(one.workspace_end for one in passes))


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Normalisation with statistics of the batch, or its gradients. Immutable.

    Args:
        name: "whole" or "parts".
        direction: "forward" or "backward".
    """

    name: str
    direction: str

    def offer(self, problem: _Statistics, figures: DeviceFigures) -> Offer | str:
        """What it would take; "parts" only where groups are large enough. The workspace is for what is found in the parts."""
        offer = _offer(_sequence(problem, figures, in_parts=self.name == "parts"), problem, self.direction)
        if self.name == "whole" or offer.workspace_bytes:
            return offer
        return f"the groups of x {problem.x.shape} are too many, or too small, to be cut into {_FEWEST_PARTS} parts"

    def units(self) -> tuple[Unit, ...]:
        """For each dtype, the kernel and the one that finishes what it found in parts."""
        return all_passes(self.direction)


@dataclass(frozen=True, slots=True)
class Inference:
    """Batch normalisation with statistics that are given. Immutable."""

    name: str = "given"

    def offer(self, problem: BatchNormInferenceProblem, figures: DeviceFigures) -> Offer:
        """What it would take; it solves everything."""
        sequence, operands = _Sequence(problem, figures, "forward", in_parts=False), _operands(problem)
        switches = Switch.APPLIES | Switch.GIVES_VARIANCE
        sequence.apply(sequence.partition(_cut(problem), operands), switches, frozenset(operands))
        return _offer(sequence.passes, problem, "forward")

    def units(self) -> tuple[Unit, ...]:
        """The forward kernels."""
        return all_passes("forward")


FORWARD = (GroupStatistics("parts", "forward"), GroupStatistics("whole", "forward"))
BACKWARD = (GroupStatistics("parts", "backward"), GroupStatistics("whole", "backward"))
INFERENCE = (Inference(),)
