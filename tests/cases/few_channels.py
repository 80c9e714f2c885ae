"""Convolutions whose outputs have few channels: several tiles of rows and columns, phases, and more weights than a block holds."""

from __future__ import annotations

from dnncore.dtypes import DType
from dnncore.problems import Direction
from tests.cases.convolution import Geometry, cases

__all__ = ["CASES"]

F16, F64 = DType.FLOAT16, DType.FLOAT64

FEW_FILTERS = (
    Geometry("several-tiles", (2, 5, 21, 37), (3, 5, 3, 3), {"padding": 1}),
    Geometry("several-slabs", (1, 90, 9, 10), (4, 90, 5, 7), {"padding": (2, 3)}),
    Geometry("stride-and-dilation", (1, 6, 41, 23), (2, 6, 3, 4), {"stride": (2, 3), "dilation": (3, 2), "padding": 4}),
    Geometry("groups", (2, 12, 9, 8), (6, 4, 3, 3), {"groups": 3, "padding": 1}, alpha=-0.5, beta=2.0),
    Geometry("fp64-slabs", (1, 70, 7, 7), (1, 70, 5, 5), {"padding": 2, "mode": "convolution"}, dtype=F64),
    Geometry("fp16-nhwc", (2, 11, 19, 9), (3, 11, 3, 3), {"padding": 1}, F16, ("NHWC",) * 3, beta=1.0),
)
FEW_CHANNELS = (
    Geometry("stride-4-11x11", (1, 3, 47, 39), (13, 3, 11, 11), {"stride": 4, "padding": 2}),
    Geometry("stride-2-7x7", (2, 3, 37, 35), (18, 3, 7, 7), {"stride": 2, "padding": 3}, alpha=2.0, beta=-1.0),
    Geometry("stride-past-the-filter", (1, 2, 13, 12), (7, 2, 2, 2), {"stride": 3}),
    Geometry(
        "stride-and-dilation-share", (1, 4, 25, 30), (6, 4, 3, 3), {"stride": 4, "dilation": (2, 6), "padding": 3}
    ),
    Geometry("fp16-gaps", (2, 6, 11, 13), (10, 3, 3, 3), {"groups": 2, "stride": 2}, F16, ("gaps",) * 3, 0.5, -1.0),
    Geometry("fp64", (1, 1, 18, 19), (5, 1, 4, 3), {"stride": (3, 2), "padding": (3, 1)}, dtype=F64),
)

CASES = tuple(
    case
    for geometries, direction in ((FEW_FILTERS, Direction.FORWARD), (FEW_CHANNELS, Direction.BACKWARD_DATA))
    for case in cases("few-channels", geometries, "direct_few_channels")
    if case.name.startswith(f"few-channels-{direction.value}")
)
