"""Batch, layer and group normalisation, in one launch or in several.

`whole` is one launch (for parameters' gradients of layer and group normalisation one more) without workspace: a block takes whole
groups. `parts` cuts groups that are few and large, so that there is work for every multiprocessor: how often is a function of
the problem and of the number of multiprocessors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.normalization.cuts import (
    FURTHER,
    SAVED,
    Backward,
    GroupNorm,
    Normalization,
    Statistics,
    cut_of,
    is_interleaved,
    only,
    operands_of,
    parameter_cut_of,
)
from dnncore.cuda.normalization.frame import Operand, Switch
from dnncore.cuda.normalization.passes import Pass, all_passes, calls_of
from dnncore.cuda.normalization.sequence import FEWEST_PARTS, PassSequence
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.figures import DeviceFigures
from dnncore.problems import (
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    GroupNormBackwardProblem,
    LayerNormBackwardProblem,
)

__all__ = ["BACKWARD", "FORWARD", "INFERENCE", "Anywhere", "GroupStatistics", "Inference"]


def _by_channels(problem: Statistics) -> bool:
    """Whether sums of channels are worth more launches, and can be put together: in the order of images, then of channels."""
    if not isinstance(problem, GroupNorm):
        return False
    x = problem.x
    places = math.prod(x.shape[2:])
    if 0 in x.shape or places == 1 or problem.groups == x.shape[1]:
        return False
    if is_interleaved(x):
        return x.shape[1] < 2**31
    return isinstance(problem, GroupNormBackwardProblem) and x == TensorDescriptor.packed(x.shape, x.dtype)


def _sequence(problem: Statistics, figures: DeviceFigures, in_parts: bool) -> list[Pass]:
    """The passes of a problem."""
    direction = "backward" if isinstance(problem, Backward) else "forward"
    sequence = PassSequence(problem, figures, direction, in_parts)
    operands, both = operands_of(problem), Switch.REDUCES | Switch.APPLIES
    if in_parts and _by_channels(problem):
        assert isinstance(problem, GroupNorm)
        sequence.add_channels(problem, operands)
        return sequence.passes
    if isinstance(problem, LayerNormBackwardProblem | GroupNormBackwardProblem):
        if problem.dscale is not None or problem.dbias is not None:  # first, because dx may be dy
            wanted = {Operand.X, Operand.DY} | SAVED | FURTHER
            sequence.add(parameter_cut_of(problem), only(operands, wanted), Switch.REDUCES)
        sequence.add(cut_of(problem), only(operands, operands.keys() - FURTHER), both | Switch.WEIGHTED)
    else:
        has_relu = isinstance(problem, BatchNormForwardProblem) and problem.activation is not None
        sequence.add(cut_of(problem), operands, both | Switch.RECTIFIES if has_relu else both)
    return sequence.passes


def _offer(passes: list[Pass], problem: Normalization, direction: str) -> Offer:
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

    def offer(self, problem: Statistics, figures: DeviceFigures) -> Offer | str:
        """What it would take; "parts" only where groups are large enough. The workspace is for what is found in the parts."""
        offer = _offer(_sequence(problem, figures, in_parts=self.name == "parts"), problem, self.direction)
        if self.name == "whole" or offer.workspace_bytes:
            return offer
        return f"the groups of x {problem.x.shape} are too many, or too small, to be cut into {FEWEST_PARTS} parts"

    def units(self) -> tuple[Unit, ...]:
        """For each dtype, the kernel and the one that finishes what it found in parts."""
        return all_passes(self.direction)


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Normalisation wherever its operands lie, for algorithms that want them aligned: in parts where that can be, else whole.
    Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str

    def offer(self, problem: Statistics, figures: DeviceFigures) -> Offer:
        """What it would take."""
        in_parts = GroupStatistics("parts", self.direction).offer(problem, figures)
        if isinstance(in_parts, Offer):
            return in_parts
        return _offer(_sequence(problem, figures, in_parts=False), problem, self.direction)

    def units(self) -> tuple[Unit, ...]:
        """As `GroupStatistics` has them."""
        return all_passes(self.direction)


@dataclass(frozen=True, slots=True)
class Inference:
    """Batch normalisation with statistics that are given. Immutable."""

    name: str = "given"

    def offer(self, problem: BatchNormInferenceProblem, figures: DeviceFigures) -> Offer:
        """What it would take; it solves everything."""
        sequence, operands = PassSequence(problem, figures, "forward", in_parts=False), operands_of(problem)
        switches = Switch.APPLIES | Switch.GIVES_VARIANCE
        sequence.apply(sequence.partition(cut_of(problem), operands), switches, frozenset(operands))
        return _offer(sequence.passes, problem, "forward")

    def units(self) -> tuple[Unit, ...]:
        """The forward kernels."""
        return all_passes("forward")


FORWARD = (GroupStatistics("parts", "forward"), GroupStatistics("whole", "forward"))
BACKWARD = (GroupStatistics("parts", "backward"), GroupStatistics("whole", "backward"))
INFERENCE = (Inference(),)
