"""Normalisations in NumPy; one module a family."""

from dnncore.backend import Algorithm
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    LRNBackwardProblem,
    LRNForwardProblem,
)
from dnncore.reference.normalization import batch_norm, group_norm, layer_norm, lrn

__all__ = ["ALGORITHMS"]

ALGORITHMS: dict[type, tuple[Algorithm, ...]] = {
    BatchNormBackwardProblem: batch_norm.BACKWARD,
    BatchNormForwardProblem: batch_norm.FORWARD,
    BatchNormInferenceProblem: batch_norm.INFERENCE,
    GroupNormBackwardProblem: group_norm.BACKWARD,
    GroupNormForwardProblem: group_norm.FORWARD,
    LayerNormBackwardProblem: layer_norm.BACKWARD,
    LayerNormForwardProblem: layer_norm.FORWARD,
    LRNBackwardProblem: lrn.BACKWARD,
    LRNForwardProblem: lrn.FORWARD,
}
