"""Strided convolutions for the algorithm that splits tensors into phases, and images of few channels in 16 bits."""

from __future__ import annotations

from dnncore.dtypes import DType
from tests.cases.convolution import Geometry, cases

__all__ = ["CASES"]

F16, BF16, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64

GEOMETRIES = (
    Geometry("first-layer", (2, 3, 15, 14), (5, 3, 7, 7), {"stride": 2, "padding": 3}),
    Geometry("stride-4", (2, 3, 19, 22), (4, 3, 11, 11), {"stride": 4, "padding": 2}),
    Geometry("rest-of-the-input", (1, 2, 14, 13), (3, 2, 5, 4), {"stride": 3}),
    Geometry("unequal-strides", (2, 3, 12, 11), (4, 3, 4, 3), {"stride": (3, 1), "padding": ((0, 2), (1, 0))}),
    Geometry("dilation-without-a-stride", (1, 3, 12, 13), (4, 3, 4, 3), {"stride": (2, 1), "dilation": (1, 2)}),
    Geometry("groups", (2, 6, 9, 8), (4, 3, 4, 4), {"stride": 2, "groups": 2, "padding": 1}),
    Geometry("true-convolution", (1, 2, 9, 10), (3, 2, 5, 4), {"stride": 2, "padding": 1, "mode": "convolution"}),
    Geometry("padding-wider-than-input", (1, 2, 2, 3), (2, 2, 3, 3), {"stride": 2, "padding": (4, 3)}),
    Geometry("gaps-blend", (2, 3, 8, 7), (4, 3, 4, 3), {"stride": 2}, layouts=("gaps",) * 3, alpha=-0.5, beta=2.0),
    Geometry("chwn", (3, 2, 7, 8), (4, 2, 3, 3), {"stride": 2}, layouts=("CHWN",) * 3),
    Geometry("fp64-nhwc", (2, 3, 9, 8), (4, 3, 3, 4), {"stride": 2, "padding": 1}, F64, ("NHWC",) * 3),
    Geometry("fp16-nhwc", (2, 3, 13, 12), (16, 3, 7, 7), {"stride": 2, "padding": 3}, F16, ("NHWC",) * 3, 0.5, -2.0),
    Geometry("fp16-filled", (2, 3, 9, 10), (16, 3, 5, 5), {"padding": 2, "mode": "convolution"}, F16, ("NHWC",) * 3),
    Geometry("bf16", (1, 3, 11, 12), (8, 3, 5, 5), {"stride": 2, "mode": "convolution"}, BF16, beta=1.0),
    Geometry("1d", (2, 3, 17), (4, 3, 7), {"spatial_ndim": 1, "stride": 3, "padding": 2}),
    Geometry("3d", (1, 2, 6, 7, 8), (3, 2, 3, 4, 4), {"spatial_ndim": 3, "stride": (1, 2, 3), "padding": 1}),
)

CASES = cases("space-to-depth", GEOMETRIES, "space_to_depth")
