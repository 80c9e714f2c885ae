"""Normalisations on CUDA: with statistics over groups of elements, and over windows."""

from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.normalization.block_per_group import BlockPerGroup
from dnncore.cuda.normalization.given_planes import GivenPlanes
from dnncore.cuda.normalization.group_gradients import GroupGradients
from dnncore.cuda.normalization.lrn import AcrossChannels, ThroughShares, Windows
from dnncore.cuda.normalization.lrn_stretches import ChannelVectors, ChannelWalk
from dnncore.cuda.normalization.resident import Resident
from dnncore.cuda.normalization.ring import Ring
from dnncore.cuda.normalization.row_gradients import RowGradients
from dnncore.cuda.normalization.rows import Rows
from dnncore.cuda.normalization.statistics import BACKWARD, FORWARD, INFERENCE
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
    Problem,
)

__all__ = ["ALGORITHMS"]


def _across_channels(direction: str) -> tuple[CudaAlgorithm, ...]:
    return (ChannelWalk(direction), ChannelVectors(direction), AcrossChannels(direction))


ALGORITHMS: dict[type[Problem], tuple[CudaAlgorithm, ...]] = {
    BatchNormBackwardProblem: (Ring("backward"), Resident("backward"), *BACKWARD),
    BatchNormForwardProblem: (Ring("forward"), Resident("forward"), *FORWARD),
    BatchNormInferenceProblem: (GivenPlanes(), *INFERENCE),
    GroupNormBackwardProblem: (GroupGradients(), *BACKWARD),
    GroupNormForwardProblem: (BlockPerGroup(), *FORWARD),
    LayerNormBackwardProblem: (RowGradients(), *BACKWARD),
    LayerNormForwardProblem: (Rows(), BlockPerGroup(), *FORWARD),
    LRNBackwardProblem: (*_across_channels("backward"), ThroughShares(), Windows("backward")),
    LRNForwardProblem: (*_across_channels("forward"), Windows("forward")),
}
