"""Convolution on CUDA: one module an algorithm, and the order in which they are tried.

Algorithms that have a `seconds(problem)` say how long they would take on an H200, and are tried in that order; those that have none
follow, and `direct`, which supports everything that is legal, is the last.
"""

from __future__ import annotations

import math

from dnncore.cuda.convolution.depthwise import DEPTHWISE, DepthwiseConvolution
from dnncore.cuda.convolution.direct import DIRECT, DirectConvolution
from dnncore.cuda.convolution.few_channels import DIRECT_FEW_CHANNELS, FewChannelsConvolution
from dnncore.cuda.convolution.fft import FFT_TILING, FftTiling
from dnncore.cuda.convolution.gemm import GEMM, GemmConvolution
from dnncore.cuda.convolution.implicit_gemm import IMPLICIT_GEMM
from dnncore.cuda.convolution.implicit_gemm_split_k import IMPLICIT_GEMM_SPLIT_K
from dnncore.cuda.convolution.implicit_precomp_gemm import IMPLICIT_PRECOMP_GEMM
from dnncore.cuda.convolution.winograd import WINOGRAD, WINOGRAD_4X4, FusedWinograd
from dnncore.cuda.convolution.winograd_nonfused import WINOGRAD_NONFUSED, WINOGRAD_NONFUSED_2X2, NonfusedWinograd
from dnncore.cuda.gemm import PrecomputedGemm, SplitGemm, TiledGemm
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["ConvolutionAlgorithm", "algorithms", "ranked", "seconds"]

ConvolutionAlgorithm = (
    SplitGemm
    | TiledGemm
    | PrecomputedGemm
    | NonfusedWinograd
    | FusedWinograd
    | FftTiling
    | DepthwiseConvolution
    | FewChannelsConvolution
    | GemmConvolution
    | DirectConvolution
)

_UNRANKED = (PrecomputedGemm, GemmConvolution, DirectConvolution)
"""Never the fastest where something else applies."""

_ALGORITHMS: tuple[ConvolutionAlgorithm, ...] = (
    DEPTHWISE,
    DIRECT_FEW_CHANNELS,
    IMPLICIT_GEMM_SPLIT_K,
    IMPLICIT_GEMM,
    IMPLICIT_PRECOMP_GEMM,
    WINOGRAD_NONFUSED,
    WINOGRAD_NONFUSED_2X2,
    WINOGRAD,
    WINOGRAD_4X4,
    FFT_TILING,
    GEMM,
    DIRECT,
)
_NO_BACKWARD_FILTER = (FusedWinograd, FewChannelsConvolution)
_BACKWARD_FILTER = tuple(algorithm for algorithm in _ALGORITHMS if not isinstance(algorithm, _NO_BACKWARD_FILTER))


def algorithms(direction: Direction) -> tuple[ConvolutionAlgorithm, ...]:
    """Algorithms of one direction; the last supports everything that is legal."""
    return _BACKWARD_FILTER if direction is Direction.BACKWARD_FILTER else _ALGORITHMS


def seconds(algorithm: ConvolutionAlgorithm, problem: ConvolutionProblem) -> float:
    """Estimated time on an H200; infinite where there is no estimate, or the algorithm does not apply."""
    return math.inf if isinstance(algorithm, _UNRANKED) else algorithm.seconds(problem)


def ranked(problem: ConvolutionProblem) -> tuple[ConvolutionAlgorithm, ...]:
    """Algorithms for a problem, fastest first by estimate; the last supports everything that is legal."""
    return tuple(sorted(algorithms(problem.direction), key=lambda algorithm: seconds(algorithm, problem)))
