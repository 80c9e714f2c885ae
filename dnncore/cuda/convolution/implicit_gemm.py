"""Convolution as a tiled product whose second operand is gathered on the way into shared memory: no workspace, every layout.

What the reduction index contributes to an address is tabulated slab by slab in shared memory; `implicit_precomp_gemm` reads it from
a table in global memory. Of 16 bits the tensor cores multiply and add up in fp32, and the sum is rounded once; where channels lie
together (NHWC) and those of a group are a multiple of 8, and filters where they are summed over or written, 16 bytes of them are
copied at once, in all three directions.

Of int8 they add up in int32, exactly: a reduction so long that int32 might not hold its sum is refused here, and is cut by
`implicit_gemm_split_k`, whose parts are added up in 64 bits. Where a group's channels lie together (NHWC) and are a multiple of 16,
as many are copied at once; in other layouts, byte by byte, it is the copies that take the time.

Padding is zeros that are multiplied: a filter that is not finite shows at the border of y, and in dw every tap that reaches into
the padding meets a dy that is not finite, both as in PyTorch. Backward-data multiplies zeros too where dy has no element, so
there a filter that is not finite spreads to places of dx that only its tap's padding reaches; `direct` does not do that.
"""

from dnncore.cuda.convolution.product import convolution_outline, convolution_product
from dnncore.cuda.gemm import TiledGemm

__all__ = ["IMPLICIT_GEMM"]

IMPLICIT_GEMM = TiledGemm("implicit_gemm", convolution_product, outline_of=convolution_outline)
