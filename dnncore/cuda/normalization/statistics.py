"""Batch, layer and group normalisation: which elements are normalised together, and in how many launches.

`whole` is one launch (for parameters' gradients of layer and group normalisation one more) without workspace: a block takes whole
groups. `parts` cuts groups that are few and large, so that there is work for every multiprocessor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from dnncore.backend import Launch
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit
from dnncore.cuda.normalization.frame import THREADS, Cut, Operand, Partition, Switch
from dnncore.cuda.normalization.passes import FIELDS, Pass, Scratch, all_passes, launch_passes
from dnncore.descriptors import TensorDescriptor
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

_BLOCKS = 132 * 8
"""That fill an H200's 132 multiprocessors twice."""

_FEWEST_PARTS = 4
"""With fewer, two launches more cost what they save."""

_STATISTICS_PACKS = 4
_APPLY_PACKS = 16
"""Least that a thread has of a part; when the output is written, of as many parts as there may be."""

_SAVED = frozenset({Operand.MEAN, Operand.INV_STD})
_FURTHER = frozenset({Operand.FIRST_OLD, Operand.SECOND_OLD, Operand.FIRST_NEW, Operand.SECOND_NEW})
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
    return {
        FIELDS[name]: tensor
        for names, tensors in ((problem.input_names, problem.inputs), (problem.output_names, problem.outputs))
        for name, tensor in zip(names, tensors, strict=True)
    }


class _Sequence:
    """The passes of a launch as they are put together, and the workspace that is given out."""

    def __init__(self, problem: _Normalization, direction: str, in_parts: bool) -> None:
        self.passes: list[Pass] = []
        self._problem = problem
        self._direction = direction
        self._in_parts = in_parts
        self._end = 0

    def add(self, cut: Cut, operands: Mapping[Operand, TensorDescriptor], switches: Switch) -> None:
        """Reduce and apply over a cut: in one pass, or in three where groups are few and parts are allowed."""
        partition = Partition.of(cut, operands)
        switches |= _nature(partition, operands)
        parts = partition.parts(_STATISTICS_PACKS, _BLOCKS // max(partition.tiles, 1)) if self._in_parts else 1
        there = frozenset(operands)
        if parts < _FEWEST_PARTS:
            self._append(self._direction, partition, 1, switches, there)
            return
        parts = -(-partition.element_packs // -(-partition.element_packs // parts))
        numbers = partition.group_count * _NUMBERS[self._direction]
        partials, totals = self._scratch(numbers * parts), None
        reduced = switches & ~Switch.APPLIES
        self._append(self._direction, partition, parts, reduced, there - _WRITTEN[self._direction], partials)
        if Switch.APPLIES in switches and self._direction == "backward":
            totals = self._scratch(numbers)
        self._finish(Partition.of(cut, operands, width_bytes=0), parts, switches, there, partials, totals)
        if Switch.APPLIES in switches:
            self.apply(partition, switches & ~Switch.REDUCES, there - _FURTHER, totals)

    def add_channels(self, problem: _GroupNorm, operands: Mapping[Operand, TensorDescriptor]) -> None:
        """Group normalisation by way of what each image's channels have: unlike the groups, they may be neighbours in memory.

        Backward, the same sums serve the gradients of scale and bias.
        """
        cut, sharing = Cut(_cut(problem).shape, frozenset({0, 1, 2})), problem.x.shape[1] // problem.groups
        forward = self._direction == "forward"
        there = frozenset(operands)
        images = {one: _of_images(operands[one]) for one in _SAVED} if _interleaved(problem.x) else {}
        partition = Partition.of(cut, {**operands, **images})
        wanted = partition.parts(_STATISTICS_PACKS, _BLOCKS // max(partition.tiles, 1))
        parts = -(-partition.element_packs // -(-partition.element_packs // wanted))
        numbers = partition.group_count * _NUMBERS[self._direction]
        partials, totals = self._scratch(numbers * parts), None
        reads = there - (_WRITTEN[self._direction] | {Operand.OUTPUT, Operand.SCALE, Operand.BIAS})
        self._append(self._direction, partition, parts, Switch.REDUCES, reads, partials, sharing=sharing)
        if forward:
            whole = Partition.of(_cut(problem), operands, width_bytes=0)
            self._finish(whole, parts * sharing, Switch.REDUCES, there - _FURTHER, partials, None)
        else:
            found = partials
            if parts > 1:
                found = self._scratch(numbers)
                channels = Partition.of(cut, _only(operands, {Operand.X}), width_bytes=0)
                self._finish(channels, parts, Switch.REDUCES, frozenset(), partials, found)
            totals = self._scratch(numbers // sharing)
            self._sum_channels(problem, operands, sharing, found, totals)
        switches = Switch.APPLIES if forward else Switch.APPLIES | Switch.WEIGHTED
        self.apply(partition, switches, there - _FURTHER, totals, sharing)
        if partition.packs_groups:
            for one, statistic in _only(operands, _SAVED).items():
                for step in self.passes[0], self.passes[-1]:
                    step.params["steps"][one] = statistic.strides[1]

    def _sum_channels(
        self,
        problem: _GroupNorm,
        operands: Mapping[Operand, TensorDescriptor],
        sharing: int,
        found: Scratch,
        totals: Scratch,
    ) -> None:
        """Put the channels of each group together, and the images of each channel."""
        partition = Partition.of(_parameter_cut(problem), operands, width_bytes=0)
        images = problem.x.shape[0]
        params = self._settings(partition.params(1, Switch.REDUCES, sharing))
        params["parts"] = images
        warps = images * problem.groups + partition.group_count
        wanted = _FURTHER | {Operand.SCALE}
        blocks = -(-warps // (THREADS // 32)) if images else 0
        self.passes.append(Pass("channels_backward", blocks, params, frozenset(operands) & wanted, found, totals))

    def apply(
        self,
        partition: Partition,
        switches: Switch,
        wanted: frozenset[Operand],
        totals: Scratch | None = None,
        sharing: int = 1,
    ) -> None:
        """Write the output from statistics, or sums, that are there."""
        parts = max(
            partition.parts(_APPLY_PACKS, partition.element_packs),
            partition.parts(_STATISTICS_PACKS, _BLOCKS // max(partition.tiles, 1)),
        )
        self._append(self._direction, partition, parts, switches, wanted, None, totals, sharing)

    def _append(
        self,
        kernel: str,
        partition: Partition,
        parts: int,
        switches: Switch,
        wanted: frozenset[Operand],
        partials: Scratch | None = None,
        totals: Scratch | None = None,
        sharing: int = 1,
    ) -> None:
        params = self._settings(partition.params(parts, switches, sharing))
        params["length"] *= sharing
        aligned = None
        if partition.is_aligned:
            whole = parts == 1 and Switch.REDUCES | Switch.APPLIES in switches
            aligned = f"{kernel}_{'kept' if whole and partition.keeps else 'aligned'}"
        self.passes.append(Pass(kernel, partition.tiles * parts, params, wanted, partials, totals, aligned))

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
        params = self._settings(partition.params(1, switches))
        params["parts"] = parts
        blocks = -(-partition.group_count // (THREADS // 32))
        self.passes.append(Pass(f"finish_{self._direction}", blocks, params, wanted, partials, totals))

    def _settings(self, params: np.ndarray) -> np.ndarray:
        for name in ("epsilon", "momentum", "parameter_alpha", "parameter_beta"):
            params[name] = getattr(self._problem, name, 0.0)
        return params

    def _scratch(self, numbers: int) -> Scratch:
        piece = Scratch(self._end, numbers * self._problem.x.dtype.compute.itemsize)
        self._end = piece.end
        return piece


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


def _sequence(problem: _Statistics, in_parts: bool) -> list[Pass]:
    """The passes of a problem."""
    sequence = _Sequence(problem, "backward" if isinstance(problem, _Backward) else "forward", in_parts)
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
        sequence.add(_cut(problem), operands, both)
    return sequence.passes


def _only(operands: Mapping[Operand, TensorDescriptor], wanted: Set[Operand]) -> dict[Operand, TensorDescriptor]:
    return {operand: tensor for operand, tensor in operands.items() if operand in wanted}


def _workspace_bytes(passes: list[Pass]) -> int:
    return max((one.workspace_end for one in passes), default=0)


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Normalisation with statistics of the batch, or its gradients. Immutable.

    Args:
        name: "whole" or "parts".
        direction: "forward" or "backward".
    """

    name: str
    direction: str
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: _Statistics, device: CudaDevice) -> str | None:  # noqa: ARG002 -- it does not matter
        """None when it can solve the problem, else the reason why not."""
        if self.name == "whole" or self.workspace_bytes(problem):
            return None
        return f"the groups of x {problem.x.shape} are too many, or too small, to be cut into {_FEWEST_PARTS} parts"

    def workspace_bytes(self, problem: _Statistics) -> int:
        """For what is found in the parts."""
        return 0 if self.name == "whole" else _workspace_bytes(_sequence(problem, in_parts=True))

    def units(self) -> tuple[Unit, ...]:
        """For each dtype, the kernel and the one that finishes what it found in parts."""
        return all_passes(self.direction)

    def prepare(self, problem: _Statistics, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        passes = _sequence(problem, in_parts=self.name == "parts")
        return launch_passes(passes, self.direction, problem.x.dtype, problem, device)


@dataclass(frozen=True, slots=True)
class Inference:
    """Batch normalisation with statistics that are given. Immutable."""

    name: str = "given"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: BatchNormInferenceProblem, device: CudaDevice) -> str | None:  # noqa: ARG002
        """It supports everything."""
        return None

    def workspace_bytes(self, problem: BatchNormInferenceProblem) -> int:  # noqa: ARG002 -- it does not matter
        """None is needed."""
        return 0

    def units(self) -> tuple[Unit, ...]:
        """The forward kernels."""
        return all_passes("forward")

    def prepare(self, problem: BatchNormInferenceProblem, device: CudaDevice) -> Launch:
        """Compile, load and fill in the parameters."""
        sequence, operands = _Sequence(problem, "forward", in_parts=False), _operands(problem)
        switches = Switch.APPLIES | Switch.GIVES_VARIANCE
        sequence.apply(Partition.of(_cut(problem), operands), switches, frozenset(operands))
        return launch_passes(sequence.passes, "forward", problem.x.dtype, problem, device)


FORWARD = (GroupStatistics("parts", "forward"), GroupStatistics("whole", "forward"))
BACKWARD = (GroupStatistics("parts", "backward"), GroupStatistics("whole", "backward"))
INFERENCE = (Inference(),)
