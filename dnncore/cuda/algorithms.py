"""Which algorithms there are for which kind of problem, and every unit that they can ask for."""

from __future__ import annotations

from dnncore.cuda import (
    activation,
    bottleneck,
    cross_entropy,
    dropout,
    im2col,
    image,
    inverted_residual,
    matmul,
    normalization,
    optimizer,
    pooling,
    reduction_vectors,
    softmax,
    softmax_rows,
    summation,
    tensor,
    top_k,
)
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convolution import plain
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.images import IMAGES
from dnncore.cuda.convolution.pooled import POOLED
from dnncore.cuda.unit import Unit
from dnncore.problems import (
    ActivationBackwardProblem,
    ActivationForwardProblem,
    AdamProblem,
    AddProblem,
    BinaryProblem,
    BottleneckProblem,
    Col2ImProblem,
    ConvolutionProblem,
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    Direction,
    DropoutProblem,
    FillProblem,
    FusedConvolutionProblem,
    Im2ColProblem,
    ImageConvolutionProblem,
    ImageNormalizationProblem,
    ImageResizeProblem,
    InvertedResidualProblem,
    MatmulProblem,
    MomentumProblem,
    PooledConvolutionProblem,
    PoolingBackwardIndicesProblem,
    PoolingBackwardProblem,
    PoolingForwardProblem,
    Problem,
    ReduceProblem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
    SumProblem,
    TopKProblem,
    UnaryProblem,
    WhereProblem,
)

__all__ = ["algorithms_for", "all_units"]


_ALGORITHMS: dict[type[Problem], tuple[CudaAlgorithm, ...]] = {
    **normalization.ALGORITHMS,
    ActivationBackwardProblem: activation.BACKWARD,
    ActivationForwardProblem: activation.FORWARD,
    AdamProblem: optimizer.ADAM,
    AddProblem: tensor.ADD,
    BinaryProblem: tensor.BINARY,
    BottleneckProblem: bottleneck.ALGORITHMS,
    Col2ImProblem: im2col.COL2IM,
    CrossEntropyBackwardProblem: cross_entropy.BACKWARD,
    CrossEntropyForwardProblem: cross_entropy.FORWARD,
    DropoutProblem: dropout.ALGORITHMS,
    FillProblem: tensor.FILL,
    FusedConvolutionProblem: FUSED,
    Im2ColProblem: im2col.IM2COL,
    ImageConvolutionProblem: IMAGES,
    ImageNormalizationProblem: image.NORMALIZATION,
    ImageResizeProblem: image.RESIZE,
    InvertedResidualProblem: inverted_residual.ALGORITHMS,
    MatmulProblem: matmul.ALGORITHMS,
    MomentumProblem: optimizer.MOMENTUM,
    PooledConvolutionProblem: POOLED,
    PoolingBackwardIndicesProblem: pooling.BACKWARD,
    PoolingBackwardProblem: pooling.BACKWARD,
    PoolingForwardProblem: pooling.FORWARD,
    ReduceProblem: reduction_vectors.ALGORITHMS,
    SoftmaxBackwardProblem: softmax.BACKWARD,
    SoftmaxForwardProblem: (softmax_rows.SoftmaxRows(), *softmax.FORWARD),
    SumProblem: summation.SUM,
    TopKProblem: top_k.ALGORITHMS,
    UnaryProblem: tensor.UNARY,
    WhereProblem: tensor.WHERE,
}


def algorithms_for(problem: Problem) -> tuple[CudaAlgorithm, ...]:
    """Algorithms for a kind of problem: of equal estimates the first is taken, and the last supports everything that is legal."""
    if isinstance(problem, ConvolutionProblem):
        return plain.algorithms_for(problem)
    return _ALGORITHMS[type(problem)]


def all_units(architecture: str | None = None) -> tuple[Unit, ...]:
    """Every unit of the library once, in a stable order: what `dnncore.cuda.build` builds and the tests compile.

    Args:
        architecture: Only those that exist for this one, as nvcc names it: "sm_90a".
    """
    families = [*_ALGORITHMS.values(), *(plain.algorithms(direction) for direction in Direction), plain.WIDE_FILTER]
    units = dict.fromkeys(unit for family in families for algorithm in family for unit in algorithm.units())
    return tuple(unit for unit in units if architecture is None or unit.why_not_on(architecture) is None)
