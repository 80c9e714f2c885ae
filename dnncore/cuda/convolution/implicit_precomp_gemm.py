"""implicit_gemm with a table of the reduction in the workspace, which cuDNN calls IMPLICIT_PRECOMP_GEMM.

It spares every block the divisions by the filter's extents (or, backward, by those of the output), and costs one more launch.
"""

from dnncore.cuda.convolution.product import convolution_outline, convolution_product
from dnncore.cuda.gemm import PrecomputedGemm

__all__ = ["IMPLICIT_PRECOMP_GEMM"]

IMPLICIT_PRECOMP_GEMM = PrecomputedGemm("implicit_precomp_gemm", convolution_product, outline_of=convolution_outline)
