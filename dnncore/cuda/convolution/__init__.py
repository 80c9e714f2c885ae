"""Convolution on CUDA: one module an algorithm, and the order in which they are tried."""

from __future__ import annotations

from dnncore.cuda.convolution.direct import DIRECT, DirectConvolution
from dnncore.cuda.convolution.implicit_gemm import IMPLICIT_GEMM
from dnncore.cuda.convolution.implicit_gemm_split_k import IMPLICIT_GEMM_SPLIT_K
from dnncore.cuda.gemm import SplitGemm, TiledGemm
from dnncore.problems import Direction

__all__ = ["ConvolutionAlgorithm", "algorithms"]

ConvolutionAlgorithm = SplitGemm | TiledGemm | DirectConvolution

_ALGORITHMS: tuple[ConvolutionAlgorithm, ...] = (IMPLICIT_GEMM_SPLIT_K, IMPLICIT_GEMM, DIRECT)


def algorithms(direction: Direction) -> tuple[ConvolutionAlgorithm, ...]:  # noqa: ARG001 (so far every one does all three)
    """Algorithms of one direction, most specialised first; the last supports everything that is legal."""
    return _ALGORITHMS
