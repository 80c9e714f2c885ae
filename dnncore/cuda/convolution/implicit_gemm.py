"""Convolution as a tiled product whose second operand is gathered on the way into shared memory: no workspace, every layout.

What the reduction index contributes to an address is tabulated slab by slab in shared memory; `implicit_precomp_gemm` reads it from
a table in global memory. Of 16 bits the tensor cores multiply and add up in fp32, and the sum is rounded once.

Padding is zeros that are multiplied: a filter that is not finite shows at the border of y, and in dw every tap that reaches into
the padding meets a dy that is not finite, both as in PyTorch. Backward-data multiplies zeros too where dy has no element, so
there a filter that is not finite spreads to places of dx that only its tap's padding reaches; `direct` does not do that.
"""

from dnncore.cuda.convolution.product import convolution_product
from dnncore.cuda.gemm import TiledGemm

__all__ = ["IMPLICIT_GEMM"]

IMPLICIT_GEMM = TiledGemm("implicit_gemm", convolution_product)
