"""The tiled GEMM that convolutions and the matrix product share: index arithmetic, choice of tiles, launches."""

from dnncore.cuda.gemm.algorithm import SplitGemm, TiledGemm
from dnncore.cuda.gemm.index_space import Digit, Phase, Product

__all__ = ["Digit", "Phase", "Product", "SplitGemm", "TiledGemm"]
