"""3x3 convolutions of stride 1, where tiles of outputs end, overlap and hang over: a line a geometry, run in all directions."""

from __future__ import annotations

from dnncore.dtypes import DType
from tests.cases.convolution import Geometry, cases

__all__ = ["CASES"]

F16, BF16, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64

GEOMETRIES = (
    Geometry("one-tile", (1, 1, 4, 4), (1, 1, 3, 3)),
    Geometry("one-output", (1, 3, 3, 3), (2, 3, 3, 3)),
    Geometry("odd-extents", (2, 5, 7, 9), (6, 5, 3, 3), {"padding": 1}),
    Geometry("one-more-than-tiles", (1, 3, 9, 5), (4, 3, 3, 3), {"padding": 1}),
    Geometry("padding-0", (2, 4, 9, 8), (3, 4, 3, 3)),
    Geometry("padding-2", (2, 4, 5, 6), (3, 4, 3, 3), {"padding": 2}),
    Geometry("padding-past-the-filter", (1, 3, 4, 5), (4, 3, 3, 3), {"padding": (4, 3)}),
    Geometry("padding-asymmetric", (2, 3, 6, 7), (4, 3, 3, 3), {"padding": ((0, 2), (3, 1))}),
    # More filters and tiles than a block of the fused kernel has, and channels that are no multiple of its slab.
    Geometry("several-blocks", (3, 70, 11, 13), (67, 70, 3, 3), {"padding": 1}),
    Geometry("several-blocks-fp64", (2, 38, 11, 10), (35, 38, 3, 3), {"padding": 1}, dtype=F64),
    Geometry("pairs", (2, 8, 8, 10), (5, 8, 3, 3), {"padding": 1}, alpha=0.5, beta=-1.5),
    Geometry("groups", (2, 15, 6, 7), (12, 5, 3, 3), {"padding": 1, "groups": 3}),
    Geometry("true-convolution", (2, 5, 6, 6), (6, 5, 3, 3), {"padding": (1, 0), "mode": "convolution"}),
    Geometry("nhwc", (2, 6, 7, 6), (9, 6, 3, 3), {"padding": 1}, layouts=("NHWC", "NHWC", "NHWC")),
    Geometry("chwn", (3, 5, 6, 5), (4, 5, 3, 3), {"padding": 1}, layouts=("CHWN", "CHWN", "CHWN")),
    Geometry("gaps", (2, 3, 6, 6), (5, 3, 3, 3), {"padding": 1}, layouts=("gaps",) * 3, alpha=-2.0, beta=0.5),
    Geometry("blend-fp64", (2, 3, 5, 6), (4, 3, 3, 3), {"padding": 1}, dtype=F64, alpha=3.0, beta=-1.0),
    Geometry("true-convolution-fp64", (1, 4, 7, 5), (3, 4, 3, 3), {"padding": 2, "mode": "convolution"}, dtype=F64),
    Geometry("batch-0", (0, 2, 5, 5), (3, 2, 3, 3), alpha=1.0, beta=2.0),
    Geometry("fp16", (2, 5, 7, 8), (6, 5, 3, 3), {"padding": 1}, dtype=F16, alpha=0.5, beta=1.5),
    Geometry("fp16-nhwc", (1, 6, 6, 5), (7, 6, 3, 3), {"padding": 1}, dtype=F16, layouts=("NHWC",) * 3),
    Geometry("bf16", (2, 6, 6, 8), (5, 6, 3, 3), {"padding": (0, 2)}, dtype=BF16),
    Geometry("long-sum", (8, 2, 33, 30), (3, 2, 3, 3), {"padding": 1}),
)

CASES = cases("winograd", GEOMETRIES, "winograd", "winograd_4x4", "winograd_nonfused", "winograd_nonfused_2x2")
