"""implicit_gemm with the reduction cut into parts, for outputs that are small beside what is added up.

That is backward-filter nearly always (a sum over the batch and all places), and the other directions at small batch sizes, where
it takes one launch mostly.
"""

from dnncore.cuda.convolution.product import convolution_outline, convolution_product
from dnncore.cuda.gemm import SplitGemm

__all__ = ["IMPLICIT_GEMM_SPLIT_K"]

IMPLICIT_GEMM_SPLIT_K = SplitGemm("implicit_gemm_split_k", convolution_product, outline_of=convolution_outline)
