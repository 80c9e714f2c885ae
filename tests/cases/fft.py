"""Convolutions of stride 1 with large filters, one tile of a Fourier transform and several: a line a geometry, all directions."""

from __future__ import annotations

from dnncore.dtypes import DType
from tests.cases.convolution import Geometry, cases

__all__ = ["CASES"]

F16, BF16, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64

GEOMETRIES = (
    Geometry("5x5-one-tile", (2, 3, 12, 11), (4, 3, 5, 5), {"padding": 2}),
    Geometry("3x3-small-tiles-both-ways", (2, 3, 26, 36), (5, 3, 3, 3)),
    Geometry("5x4-small-tiles", (1, 2, 10, 43), (3, 2, 5, 4), {"padding": 2}),
    Geometry("7x7-one-large-tile", (1, 5, 23, 25), (6, 5, 7, 7), {"padding": 3}),
    Geometry("9x9-large-tiles-both-ways", (1, 2, 51, 58), (3, 2, 9, 9)),
    Geometry("11x11-large-tiles", (2, 3, 40, 29), (5, 3, 11, 11), {"padding": (0, 1)}),
    # Backward-data, all of dx is one tile, though it is larger than what a tile of any padding would give; then so is y.
    Geometry("7x7-gradient-is-one-tile", (2, 3, 16, 15), (4, 3, 7, 7)),
    Geometry("9x9-gradient-is-one-large-tile", (1, 2, 32, 31), (3, 2, 9, 9)),
    Geometry("full-padding", (2, 3, 10, 9), (4, 3, 7, 7), {"padding": 6}),
    Geometry("17x17", (1, 2, 19, 35), (3, 2, 17, 17), {"padding": 1}),
    Geometry("2x1", (1, 1, 17, 16), (1, 1, 2, 1)),
    Geometry("dilation", (2, 3, 21, 20), (4, 3, 5, 3), {"padding": (1, 3), "dilation": (4, 8)}),
    Geometry("dilation-true-convolution", (1, 2, 15, 17), (3, 2, 3, 4), {"dilation": (3, 2), "mode": "convolution"}),
    Geometry("true-convolution", (2, 3, 10, 12), (4, 3, 5, 4), {"padding": (1, 2), "mode": "convolution"}),
    Geometry("groups", (2, 6, 14, 15), (9, 2, 5, 5), {"groups": 3, "padding": 2}),
    Geometry("padding-asymmetric", (2, 3, 9, 10), (4, 3, 5, 5), {"padding": ((0, 4), (6, 1))}),
    Geometry("padding-past-the-filter", (1, 2, 3, 4), (3, 2, 5, 5), {"padding": (9, 7)}),
    Geometry("nhwc", (2, 5, 13, 12), (7, 5, 5, 5), {"padding": 2}, layouts=("NHWC",) * 3),
    Geometry("chwn", (3, 2, 13, 12), (5, 2, 7, 7), {"padding": 3}, layouts=("CHWN",) * 3),
    Geometry("gaps", (2, 3, 10, 9), (4, 3, 5, 5), {"padding": 2}, layouts=("gaps",) * 3, alpha=-2.0, beta=0.5),
    Geometry("blend-large-tile", (1, 3, 22, 21), (2, 3, 11, 11), alpha=0.5, beta=-1.5),
    # More filters, channels and tiles than a block's tile of the product has rows and columns, and sums of several slabs.
    Geometry("many-filters", (3, 9, 8, 7), (67, 9, 4, 4)),
    Geometry("many-channels", (3, 67, 8, 7), (19, 67, 4, 4)),
    Geometry("many-tiles", (70, 3, 8, 9), (20, 3, 5, 5)),
    # More stages than a block has places for, of one tile and of several: 7 of 6, and 9 of 8 where matrices are small.
    Geometry("sums-of-many-channels", (1, 100, 7, 8), (12, 100, 4, 4)),
    Geometry("sums-of-many-images", (135, 9, 7, 8), (12, 9, 4, 4), alpha=-1.0, beta=2.0),
    Geometry("sums-of-many-images-of-many-filters", (100, 9, 7, 8), (67, 9, 4, 4)),
    Geometry("sums-of-many-images-in-groups", (36, 18, 6, 7), (24, 9, 3, 3), {"groups": 2}),
    Geometry("many-filters-and-tiles", (130, 17, 7, 6), (70, 17, 3, 3)),
    Geometry("many-tiles-of-few-filters", (133, 2, 6, 7), (3, 2, 4, 4)),
    Geometry("batch-0", (0, 2, 9, 9), (3, 2, 5, 5), alpha=1.0, beta=2.0),
    Geometry("1d", (2, 3, 41), (4, 3, 9), {"spatial_ndim": 1, "padding": ((4, 3),)}),
    Geometry("fp64-small-tiles", (2, 3, 12, 40), (4, 3, 5, 5), {"padding": 2}, dtype=F64),
    Geometry("fp64-large-tiles", (1, 2, 30, 45), (3, 2, 9, 9), dtype=F64, alpha=2.0, beta=1.0),
    Geometry("fp64-many-filters", (1, 9, 7, 8), (70, 9, 3, 3), dtype=F64),
    Geometry("fp64-many-channels", (2, 37, 7, 8), (9, 37, 3, 3), dtype=F64),
    Geometry("fp16-small-tiles", (2, 3, 12, 11), (4, 3, 5, 5), {"padding": 2}, dtype=F16, alpha=0.5, beta=1.0),
    Geometry("fp16-large-tiles", (1, 3, 30, 41), (4, 3, 11, 11), dtype=F16),
    Geometry("bf16-small-tiles", (1, 3, 12, 11), (4, 3, 5, 5), dtype=BF16, layouts=("NHWC",) * 3),
    Geometry("bf16-large-tiles", (1, 2, 30, 28), (3, 2, 11, 11), {"padding": 5}, dtype=BF16),
)

CASES = cases("fft", GEOMETRIES, "fft_tiling", "fft_tiling_3xtf32")
