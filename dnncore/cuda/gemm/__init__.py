"""The tiled GEMM that convolutions and the matrix product share: index arithmetic, choice of tiles, calls."""

from dnncore.cuda.gemm.algorithm import SplitGemm, TiledGemm
from dnncore.cuda.gemm.clamped import ClampedGemm, ClampedSplitGemm
from dnncore.cuda.gemm.estimate import product_or_reason
from dnncore.cuda.gemm.index_space import Digit, Epilogue, Extents, Outline, Phase, Product
from dnncore.cuda.gemm.params import BLEND_AND_EPILOGUE, EPILOGUE, fields_of, fill_epilogue
from dnncore.cuda.gemm.precomputed import PrecomputedGemm
from dnncore.cuda.gemm.tiling import LONGEST_INT8_SUM

__all__ = [
    "BLEND_AND_EPILOGUE",
    "EPILOGUE",
    "LONGEST_INT8_SUM",
    "ClampedGemm",
    "ClampedSplitGemm",
    "Digit",
    "Epilogue",
    "Extents",
    "Outline",
    "Phase",
    "PrecomputedGemm",
    "Product",
    "SplitGemm",
    "TiledGemm",
    "fields_of",
    "fill_epilogue",
    "product_or_reason",
]
