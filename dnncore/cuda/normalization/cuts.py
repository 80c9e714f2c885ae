"""Which elements batch, layer and group normalisation take statistics over together, and where the operands are."""

from __future__ import annotations

from collections.abc import Mapping, Set

from dnncore.cuda.normalization.frame import Cut, Operand
from dnncore.cuda.normalization.passes import places_of
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

__all__ = [
    "FURTHER",
    "SAVED",
    "Backward",
    "GroupNorm",
    "Normalization",
    "Statistics",
    "cut_of",
    "is_interleaved",
    "of_images",
    "only",
    "operands_of",
    "parameter_cut_of",
]

BatchNorm = BatchNormForwardProblem | BatchNormBackwardProblem | BatchNormInferenceProblem
Backward = BatchNormBackwardProblem | LayerNormBackwardProblem | GroupNormBackwardProblem
GroupNorm = GroupNormForwardProblem | GroupNormBackwardProblem
Statistics = Backward | BatchNormForwardProblem | LayerNormForwardProblem | GroupNormForwardProblem
Normalization = Statistics | BatchNormInferenceProblem

SAVED = frozenset({Operand.MEAN, Operand.INV_STD})
FURTHER = frozenset({Operand.FIRST_OLD, Operand.SECOND_OLD, Operand.FIRST_NEW, Operand.SECOND_NEW})
"""Statistics, and what is read or written once for each group besides."""


def cut_of(problem: Normalization) -> Cut:
    """What is normalised together."""
    x = problem.x
    whole = tuple((extent,) for extent in x.shape)
    if isinstance(problem, BatchNorm):
        return Cut(whole, frozenset(range(x.ndim)) - frozenset(batch_norm_axes(x, problem.mode)))
    if isinstance(problem, LayerNormForwardProblem | LayerNormBackwardProblem):
        return Cut(whole, frozenset(range(problem.axis)))
    channels = (problem.groups, x.shape[1] // problem.groups)
    return Cut((whole[0], channels, *whole[2:]), frozenset({0, 1}))


def parameter_cut_of(problem: LayerNormBackwardProblem | GroupNorm) -> Cut:
    """What shares a scale."""
    cut = cut_of(problem)
    if isinstance(problem, LayerNormBackwardProblem):
        return Cut(cut.shape, frozenset(range(len(cut.shape))) - cut.groups)
    return Cut(cut.shape, frozenset({1, 2}))


def operands_of(problem: Normalization) -> dict[Operand, TensorDescriptor]:
    """Descriptors of a problem's operands."""
    tensors = (*problem.inputs, *problem.outputs)
    return {operand: tensors[place] for operand, place in places_of(problem).items()}


def only(operands: Mapping[Operand, TensorDescriptor], wanted: Set[Operand]) -> dict[Operand, TensorDescriptor]:
    """Those operands that are wanted."""
    return {operand: tensor for operand, tensor in operands.items() if operand in wanted}


def is_interleaved(x: TensorDescriptor) -> bool:
    """Whether an image's channels are neighbours, places follow, and images come last."""
    places = [stride for extent, stride in zip(x.shape[2:], x.strides[2:], strict=True) if extent > 1]
    return x.strides[1] == 1 and min(places) >= x.shape[1] and (x.shape[0] == 1 or x.strides[0] > max(places))


def of_images(statistic: TensorDescriptor) -> TensorDescriptor:
    """A statistic as it changes from image to image; within one, `Partition.params` is told how many channels share it."""
    shape = (statistic.shape[0], *(1,) * (statistic.ndim - 1))
    return TensorDescriptor(statistic.dtype, shape, statistic.strides)
