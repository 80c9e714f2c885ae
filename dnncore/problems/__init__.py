"""Operations as frozen values: the key of every cache, the unit of every test case and of every benchmark.

The first output of every operation is blended: it becomes ``alpha * operation(inputs) + beta * output``, and with beta 0 it is
written without being read. Further outputs (saved statistics, indices) are overwritten, unless the problem says otherwise, as an
optimizer's step does, which blends all weights. A problem names the descriptors of its inputs and outputs, in the order in which
launches take them.
"""

from dnncore.problems.activation import ActivationBackwardProblem, ActivationForwardProblem
from dnncore.problems.bottleneck import BottleneckProblem
from dnncore.problems.convolution import ConvolutionKind, ConvolutionProblem, Direction
from dnncore.problems.cross_entropy import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from dnncore.problems.dropout import DropoutProblem
from dnncore.problems.fused_convolution import FusedConvolutionProblem
from dnncore.problems.im2col import Col2ImProblem, Im2ColProblem
from dnncore.problems.image import ImageConvolutionProblem, ImageNormalizationProblem, ImageResizeProblem
from dnncore.problems.inverted_residual import InvertedResidualProblem
from dnncore.problems.matmul import MatmulProblem
from dnncore.problems.normalization import (
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
from dnncore.problems.optimizer import AdamProblem, MomentumProblem
from dnncore.problems.pooled_convolution import PooledConvolutionProblem
from dnncore.problems.pooling import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem
from dnncore.problems.problem import Problem
from dnncore.problems.reduce import ReduceProblem
from dnncore.problems.softmax import SoftmaxBackwardProblem, SoftmaxForwardProblem
from dnncore.problems.tensor import AddProblem, BinaryProblem, FillProblem, SumProblem, UnaryProblem, WhereProblem
from dnncore.problems.top_k import TopKProblem

__all__ = [
    "ActivationBackwardProblem",
    "ActivationForwardProblem",
    "AdamProblem",
    "AddProblem",
    "BatchNormBackwardProblem",
    "BatchNormForwardProblem",
    "BatchNormInferenceProblem",
    "BinaryProblem",
    "BottleneckProblem",
    "Col2ImProblem",
    "ConvolutionKind",
    "ConvolutionProblem",
    "CrossEntropyBackwardProblem",
    "CrossEntropyForwardProblem",
    "Direction",
    "DropoutProblem",
    "FillProblem",
    "FusedConvolutionProblem",
    "GroupNormBackwardProblem",
    "GroupNormForwardProblem",
    "Im2ColProblem",
    "ImageConvolutionProblem",
    "ImageNormalizationProblem",
    "ImageResizeProblem",
    "InvertedResidualProblem",
    "LRNBackwardProblem",
    "LRNForwardProblem",
    "LayerNormBackwardProblem",
    "LayerNormForwardProblem",
    "MatmulProblem",
    "MomentumProblem",
    "PooledConvolutionProblem",
    "PoolingBackwardIndicesProblem",
    "PoolingBackwardProblem",
    "PoolingForwardProblem",
    "Problem",
    "ReduceProblem",
    "SoftmaxBackwardProblem",
    "SoftmaxForwardProblem",
    "SumProblem",
    "TopKProblem",
    "UnaryProblem",
    "WhereProblem",
]
