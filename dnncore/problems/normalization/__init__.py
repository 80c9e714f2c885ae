"""Normalisations; one module a family."""

from dnncore.problems.normalization.batch_norm import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
)
from dnncore.problems.normalization.group_norm import GroupNormBackwardProblem, GroupNormForwardProblem
from dnncore.problems.normalization.layer_norm import LayerNormBackwardProblem, LayerNormForwardProblem
from dnncore.problems.normalization.lrn import LRNBackwardProblem, LRNForwardProblem

__all__ = [
    "BatchNormBackwardProblem",
    "BatchNormForwardProblem",
    "BatchNormInferenceProblem",
    "GroupNormBackwardProblem",
    "GroupNormForwardProblem",
    "LRNBackwardProblem",
    "LRNForwardProblem",
    "LayerNormBackwardProblem",
    "LayerNormForwardProblem",
]
