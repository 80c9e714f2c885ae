"""Which algorithms there are for a fused convolution.

Where FFTs or Winograd's tiles save more than a second pass over y costs, or where there is no tiled kernel, it is composed; without
a workspace it is tiled or direct.
"""

from __future__ import annotations

from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convolution.composed import COMPOSED, COMPOSED_IN_PLACE
from dnncore.cuda.convolution.fused_direct import FUSED_DIRECT
from dnncore.cuda.convolution.fused_product import fused_product
from dnncore.cuda.convolution.wgmma import WgmmaConvolution
from dnncore.cuda.gemm import ClampedGemm, SplitGemm, TiledGemm

__all__ = ["FUSED"]

_IMPLICIT_GEMM = TiledGemm("implicit_gemm", fused_product, fused=True)

FUSED: tuple[CudaAlgorithm, ...] = (
    WgmmaConvolution("implicit_gemm_wgmma", _IMPLICIT_GEMM),
    SplitGemm("implicit_gemm_split_k", fused_product, fused=True),
    _IMPLICIT_GEMM,
    ClampedGemm("implicit_gemm_clamped", fused_product),
    COMPOSED_IN_PLACE,
    COMPOSED,
    FUSED_DIRECT,
)
"""Of equal estimates the first is taken; the last supports everything that is legal."""
