"""Which algorithms there are for a fused convolution, and the order in which they are tried.

A depthwise convolution, say, or int8 has no tiled kernel, so it is composed; without a workspace it is direct.
"""

from __future__ import annotations

from dnncore.cuda.convolution import ranked
from dnncore.cuda.convolution.composed import ComposedConvolution
from dnncore.cuda.convolution.fused_direct import FUSED_DIRECT, FusedDirect
from dnncore.cuda.convolution.fused_product import fused_product
from dnncore.cuda.gemm import SplitGemm, TiledGemm

__all__ = ["FUSED"]

FUSED: tuple[SplitGemm | TiledGemm | ComposedConvolution | FusedDirect, ...] = (
    SplitGemm("implicit_gemm_split_k", fused_product, fused=True),
    TiledGemm("implicit_gemm", fused_product, fused=True),
    ComposedConvolution(ranked),
    FUSED_DIRECT,
)
"""Most specialised first; the last supports everything that is legal."""
