"""Which algorithms there are for a convolution alone."""

from __future__ import annotations

from functools import lru_cache

from dnncore.backend import Offer
from dnncore.choice import fastest
from dnncore.cuda.algorithm import BoundedAnywhere, CudaAlgorithm
from dnncore.cuda.convolution.depthwise import DEPTHWISE
from dnncore.cuda.convolution.depthwise_filter_channels import DEPTHWISE_CHANNELS_BACKWARD_FILTER
from dnncore.cuda.convolution.depthwise_filter_columns import DEPTHWISE_COLUMNS_BACKWARD_FILTER
from dnncore.cuda.convolution.depthwise_filter_planes import DEPTHWISE_PLANES_BACKWARD_FILTER
from dnncore.cuda.convolution.depthwise_planes import DEPTHWISE_PLANES
from dnncore.cuda.convolution.direct import DIRECT
from dnncore.cuda.convolution.few_channels import DIRECT_FEW_CHANNELS
from dnncore.cuda.convolution.fft import FFT_TILING, FFT_TILING_3XTF32
from dnncore.cuda.convolution.gemm import GEMM
from dnncore.cuda.convolution.implicit_gemm import IMPLICIT_GEMM
from dnncore.cuda.convolution.implicit_gemm_split_k import IMPLICIT_GEMM_SPLIT_K
from dnncore.cuda.convolution.implicit_precomp_gemm import IMPLICIT_PRECOMP_GEMM
from dnncore.cuda.convolution.merged_planes import MergedPlanes
from dnncore.cuda.convolution.operands import is_wide
from dnncore.cuda.convolution.relaid import RelaidConvolution
from dnncore.cuda.convolution.space_to_depth import SpaceToDepth
from dnncore.cuda.convolution.tf32_backward_filter import Tf32BackwardFilter
from dnncore.cuda.convolution.tf32_planes import Tf32Planes
from dnncore.cuda.convolution.tf32_rows_backward_filter import Tf32RowsBackwardFilter
from dnncore.cuda.convolution.thin import ThinConvolution
from dnncore.cuda.convolution.wgmma import WgmmaConvolution
from dnncore.cuda.convolution.wgmma_backward_data import WgmmaBackwardData
from dnncore.cuda.convolution.wgmma_backward_filter import WgmmaBackwardFilter
from dnncore.cuda.convolution.wgmma_rows import WgmmaRows
from dnncore.cuda.convolution.wgmma_rows_backward_filter import WgmmaRowsBackwardFilter
from dnncore.cuda.convolution.winograd import WINOGRAD, WINOGRAD_4X4
from dnncore.cuda.convolution.winograd_nonfused import WINOGRAD_NONFUSED, WINOGRAD_NONFUSED_2X2
from dnncore.family import Family
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["WIDE_FILTER", "algorithms", "algorithms_for", "best_offer"]

_FIRST: tuple[CudaAlgorithm, ...] = (DEPTHWISE, DEPTHWISE_PLANES, DIRECT_FEW_CHANNELS)
_OTHERS: tuple[CudaAlgorithm, ...] = (
    IMPLICIT_GEMM_SPLIT_K,
    IMPLICIT_GEMM,
    IMPLICIT_PRECOMP_GEMM,
    WINOGRAD_NONFUSED,
    WINOGRAD_NONFUSED_2X2,
    WINOGRAD,
    WINOGRAD_4X4,
    FFT_TILING,
    FFT_TILING_3XTF32,
    GEMM,
    DIRECT,
)
_WGMMA: dict[Direction, tuple[BoundedAnywhere, ...]] = {
    Direction.FORWARD: (
        ThinConvolution(IMPLICIT_GEMM),
        WgmmaConvolution("implicit_gemm_wgmma", IMPLICIT_GEMM),
        WgmmaRows("implicit_gemm_wgmma_rows", IMPLICIT_GEMM),
    ),
    Direction.BACKWARD_DATA: (WgmmaBackwardData("implicit_gemm_wgmma", IMPLICIT_GEMM),),
    Direction.BACKWARD_FILTER: (
        WgmmaBackwardFilter("implicit_gemm_wgmma", IMPLICIT_GEMM),
        WgmmaRowsBackwardFilter("implicit_gemm_wgmma_rows", IMPLICIT_GEMM),
    ),
}
_TF32 = Tf32BackwardFilter("implicit_gemm_tf32", 1, IMPLICIT_GEMM)
_PLANES = Tf32Planes("implicit_gemm_3xtf32", IMPLICIT_GEMM)
_FILTER_OF_PLANES = Tf32BackwardFilter("implicit_gemm_3xtf32", 3, IMPLICIT_GEMM)
_MERGED = MergedPlanes("implicit_gemm_3xtf32_merged", (_PLANES,))
_RELAID = {
    direction: RelaidConvolution(
        "implicit_gemm_wgmma_relaid",
        (*algorithms, _TF32) if direction is Direction.BACKWARD_FILTER else algorithms,
    )
    for direction, algorithms in _WGMMA.items()
}
_STRIDE_1: dict[Direction, tuple[CudaAlgorithm, ...]] = {
    Direction.FORWARD: (*_FIRST, *_WGMMA[Direction.FORWARD], _RELAID[Direction.FORWARD], _PLANES, _MERGED, *_OTHERS),
    Direction.BACKWARD_DATA: (
        *_FIRST,
        *_WGMMA[Direction.BACKWARD_DATA],
        _RELAID[Direction.BACKWARD_DATA],
        _PLANES,
        _MERGED,
        *_OTHERS,
    ),
    Direction.BACKWARD_FILTER: (
        DEPTHWISE,
        DEPTHWISE_CHANNELS_BACKWARD_FILTER,
        DEPTHWISE_COLUMNS_BACKWARD_FILTER,
        DEPTHWISE_PLANES_BACKWARD_FILTER,
        *_WGMMA[Direction.BACKWARD_FILTER],
        _TF32,
        _FILTER_OF_PLANES,
        Tf32RowsBackwardFilter("implicit_gemm_3xtf32_rows"),
        MergedPlanes("implicit_gemm_3xtf32_merged", (_FILTER_OF_PLANES,)),
        _RELAID[Direction.BACKWARD_FILTER],
        *(each for each in _OTHERS if each not in (WINOGRAD, WINOGRAD_4X4)),
    ),
}
_OF: dict[Direction, Family[CudaAlgorithm]] = {
    direction: Family((SpaceToDepth(Family(algorithms)), *algorithms)) for direction, algorithms in _STRIDE_1.items()
}


WIDE_FILTER: Family[CudaAlgorithm] = Family(
    (
        *_WGMMA[Direction.BACKWARD_FILTER],
        RelaidConvolution("implicit_gemm_wgmma_relaid", _WGMMA[Direction.BACKWARD_FILTER]),
        IMPLICIT_GEMM_SPLIT_K,
        IMPLICIT_GEMM,
        DIRECT,
    )
)
"""For gradients of filters in float32, of operands in 16 bits."""


def algorithms(direction: Direction) -> Family[CudaAlgorithm]:
    """Algorithms of one direction: of equal estimates the first is taken, and the last supports everything that is legal.

    The three operands have one dtype.
    """
    return _OF[direction]


def algorithms_for(problem: ConvolutionProblem) -> Family[CudaAlgorithm]:
    """The same for a problem, whose filter gradient may be wider than its operands."""
    return WIDE_FILTER if is_wide(problem) else _OF[problem.direction]


@lru_cache(maxsize=64)
def best_offer(problem: ConvolutionProblem, figures: DeviceFigures) -> Offer:
    """What the fastest algorithm offers for a problem."""
    found = fastest(algorithms_for(problem), problem, figures)
    assert found is not None, "the last algorithm supports everything"
    return found[1]
