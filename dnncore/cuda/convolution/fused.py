"""Which algorithms there are for a fused convolution, and the order in which they are tried: by their estimates.

Where FFTs or Winograd's tiles save more than a second pass over y costs, or where there is no tiled kernel, it is composed; without
a workspace it is direct.
"""

from __future__ import annotations

import math

from dnncore.cuda.convolution.composed import ComposedConvolution
from dnncore.cuda.convolution.fused_direct import FUSED_DIRECT, FusedDirect
from dnncore.cuda.convolution.fused_product import fused_product
from dnncore.cuda.gemm import SplitGemm, TiledGemm
from dnncore.cuda.params import FULL_PRECISION
from dnncore.dtypes import DType
from dnncore.problems import FusedConvolutionProblem

__all__ = ["FUSED", "ranked_fused"]

FusedAlgorithm = SplitGemm | TiledGemm | ComposedConvolution | FusedDirect

FUSED: tuple[FusedAlgorithm, ...] = (
    SplitGemm("implicit_gemm_split_k", fused_product, fused=True),
    TiledGemm("implicit_gemm", fused_product, fused=True),
    ComposedConvolution(),
    FUSED_DIRECT,
)
"""Of equal estimates the first is taken; the last supports everything that is legal."""


def _epilogue_seconds(dtype: DType) -> float:
    """What an element of y takes the tiled GEMM beside a plain store, on an H200; more where stores are single elements."""
    return 6.8e-12 if dtype in FULL_PRECISION else 1.4e-12


def ranked_fused(problem: FusedConvolutionProblem) -> tuple[FusedAlgorithm, ...]:
    """Algorithms for a problem, fastest first by estimate; the last supports everything that is legal."""

    def seconds(algorithm: FusedAlgorithm) -> float:
        if isinstance(algorithm, FusedDirect):
            return math.inf
        epilogue = problem.y.size * _epilogue_seconds(problem.x.dtype) if isinstance(algorithm, TiledGemm) else 0.0
        return algorithm.seconds(problem) + epilogue

    return tuple(sorted(FUSED, key=seconds))
