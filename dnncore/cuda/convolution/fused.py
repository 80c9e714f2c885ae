"""Which algorithms there are for a fused convolution.

Tiled products, Winograd's tiles, FFTs and depthwise kernels apply the epilogue themselves. The rest is composed of a convolution
and a second pass over y: a residual that is laid out otherwise, few channels.
"""

from __future__ import annotations

from dataclasses import replace

from dnncore.cuda.algorithm import BoundedAnywhere, CudaAlgorithm
from dnncore.cuda.convolution.composed import COMPOSED, COMPOSED_IN_PLACE
from dnncore.cuda.convolution.fft import FftTiling
from dnncore.cuda.convolution.finished import FINISHED, FINISHED_ALONE, FinishedConvolution
from dnncore.cuda.convolution.fused_direct import FUSED_DIRECT
from dnncore.cuda.convolution.fused_product import fused_outline, fused_product
from dnncore.cuda.convolution.merged_planes import MergedPlanes
from dnncore.cuda.convolution.relaid import RelaidConvolution
from dnncore.cuda.convolution.space_to_depth import SpaceToDepth
from dnncore.cuda.convolution.tf32_planes import Tf32Planes
from dnncore.cuda.convolution.thin import ThinConvolution
from dnncore.cuda.convolution.wgmma import WgmmaConvolution
from dnncore.cuda.convolution.wgmma_rows import WgmmaRows
from dnncore.cuda.gemm import ClampedGemm, ClampedSplitGemm, SplitGemm, TiledGemm
from dnncore.family import Family

__all__ = ["FUSED"]

_IMPLICIT_GEMM = TiledGemm("implicit_gemm", fused_product, fused=True, outline_of=fused_outline)
_WGMMA: tuple[BoundedAnywhere, ...] = (
    ThinConvolution(_IMPLICIT_GEMM),
    WgmmaConvolution("implicit_gemm_wgmma", _IMPLICIT_GEMM),
    WgmmaRows("implicit_gemm_wgmma_rows", _IMPLICIT_GEMM),
)

_PLANES = Tf32Planes("implicit_gemm_3xtf32", _IMPLICIT_GEMM)

_STRIDE_1: tuple[CudaAlgorithm, ...] = (
    *_WGMMA,
    RelaidConvolution("implicit_gemm_wgmma_relaid", _WGMMA),
    _PLANES,
    MergedPlanes("implicit_gemm_3xtf32_merged", (_PLANES,)),
    SplitGemm("implicit_gemm_split_k", fused_product, fused=True, outline_of=fused_outline),
    _IMPLICIT_GEMM,
    ClampedSplitGemm("implicit_gemm_clamped_split_k", fused_product, fused_outline),
    ClampedGemm("implicit_gemm_clamped", fused_product, fused_outline),
    *(FinishedConvolution(each) for each in FINISHED),
    *(FinishedConvolution(each, reads_residuals=False) for each in FINISHED_ALONE),
    COMPOSED_IN_PLACE,
    COMPOSED,
    FUSED_DIRECT,
)


def _in_smaller_parts(algorithm: CudaAlgorithm) -> CudaAlgorithm:
    """Phases lie beside the spectra; without this GoogLeNet's first layer at batch 256 took half of the whole net's memory."""
    if isinstance(algorithm, FinishedConvolution) and isinstance(algorithm.algorithm, FftTiling):
        return replace(algorithm, algorithm=replace(algorithm.algorithm, of_many_bytes=0.375))
    return algorithm


_OVER_PHASES = Family([_in_smaller_parts(each) for each in _STRIDE_1])
FUSED: Family[CudaAlgorithm] = Family((SpaceToDepth(_OVER_PHASES), *_STRIDE_1))
"""Of equal estimates the first is taken; the last supports everything that is legal."""
