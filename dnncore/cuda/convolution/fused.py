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


def ranked_fused(problem: FusedConvolutionProblem) -> tuple[FusedAlgorithm, ...]:
    """Algorithms for a problem, fastest first by estimate; the last supports everything that is legal."""

    def seconds(algorithm: FusedAlgorithm) -> float:
        return math.inf if isinstance(algorithm, FusedDirect) else algorithm.seconds(problem)

    return tuple(sorted(FUSED, key=seconds))
