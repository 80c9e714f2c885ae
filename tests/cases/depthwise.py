"""Depthwise convolutions: each line is a geometry, run in all three directions unless it says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64


@dataclass(frozen=True)
class Geometry:
    name: str
    x: tuple[int, ...]
    window: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    multiplier: int = 1
    dtype: DType = F32
    layouts: tuple[str, str, str] = ("NCHW", "NCHW", "NCHW")
    alpha: float = 1.0
    beta: float = 0.0
    directions: tuple[Direction, ...] = tuple(Direction)
    written_for: str = "depthwise"


NHWC = ("NHWC", "NCHW", "NHWC")
TO_IMAGES = (Direction.FORWARD, Direction.BACKWARD_DATA)
TO_FILTERS = (Direction.BACKWARD_FILTER,)

# Small square filters: whole and half pieces of 16 bytes, tiles that are not full, both strides, whatever padding there is of rows.
TILED = tuple(
    Geometry(
        f"tiles-{size}x{size}-stride-{stride}-{dtype.value}-{name}",
        x,
        (size, size),
        settings,
        1,
        dtype,
        layouts,
        *blend,
    )
    for size in (3, 5)
    for stride in (1, 2)
    for dtype in (F16, BF16, F32)
    for name, x, layouts, settings, blend in (
        ("pieces", (2, 3, 11, 24), ("NCHW",) * 3, {"padding": size // 2, "stride": stride}, ()),
        (
            "half-pieces",
            (1, 5, 7, 56 // dtype.itemsize),
            ("NCHW",) * 3,
            {"padding": size // 2, "stride": stride},
            (0.5, -2.0),
        ),
        (
            "wide-padding",
            (1, 2, 9, 16),
            ("NCHW",) * 3,
            {"padding": ((1, 3), (size // 2, 8 + size // 2)), "stride": stride, "mode": "convolution"},
            (),
        ),
        ("channels", (2, 12, 10, 9), NHWC, {"padding": ((2, 0), (size // 2, 3)), "stride": stride}, (2.0, 1.0)),
    )
)

# Whole pieces of channels: several blocks of channels, of rows and of images, images in strips, and whatever padding there is.
BY_ROWS = tuple(
    Geometry(
        f"rows-{size}x{size}-stride-{stride}-{dtype.value}-{name}", x, (size, size), settings, 1, dtype, NHWC, *blend
    )
    for size in (3, 5, 7)
    for stride in (1, 2)
    for dtype in (F16, BF16, F32)
    for name, x, settings, blend in (
        ("narrow", (5, 24, 9, 6), {"padding": size // 2, "stride": stride}, ()),
        (
            "odd-padding",
            (2, 16, 13, 19),
            {"padding": ((0, 3), (size, 1)), "stride": stride, "mode": "convolution"},
            (0.5, -2.0),
        ),
    )
)
IN_STRIPS = tuple(
    Geometry(
        f"rows-in-strips-stride-{stride}",
        (1, 8, 5, 530 * stride),
        (3, 3),
        {"padding": 1, "stride": stride},
        1,
        F16,
        NHWC,
    )
    for stride in (1, 2)
)

# Bands of rows: one for an image and several, the last of fewer rows; columns that are no multiple of the filter's, fewer than it;
# padding that differs on every side, up to more than the filter; several parts.
IN_BANDS = tuple(
    Geometry(
        f"bands-{size}x{size}-{dtype.value}-{name}",
        x,
        (size, size),
        settings,
        1,
        dtype,
        NHWC,
        alpha=blend[0],
        beta=blend[1],
        directions=TO_FILTERS,
        written_for="depthwise_channels",
    )
    for size in (5, 7)
    for dtype in (F16, BF16, F32)
    for name, x, settings, blend in (
        ("whole", (5, 16, 8, 7), {"padding": size // 2}, (1.0, 0.0)),
        ("odd-padding", (2, 24, 11, 9), {"padding": ((1, size + 1), (size, 2)), "mode": "convolution"}, (0.5, -2.0)),
        ("no-padding", (3, 8, size + 2, size), {}, (2.0, 1.0)),
    )
)
IN_MANY_BANDS = (
    Geometry(
        "bands-wide-rows",
        (2, 8, 7, 130),
        (7, 7),
        {"padding": 3},
        1,
        F32,
        NHWC,
        directions=TO_FILTERS,
        written_for="depthwise_channels",
    ),
)
# Walks down columns: strips of one group and of several, of which the last has fewer; a single row; several blocks of channels;
# parts that end between images and within one.
DOWN_COLUMNS = tuple(
    Geometry(
        f"columns-{dtype.value}-{name}",
        x,
        (3, 3),
        {"padding": 1, **settings},
        1,
        dtype,
        NHWC,
        alpha=blend[0],
        beta=blend[1],
        directions=TO_FILTERS,
        written_for="depthwise_columns",
    )
    for dtype in (F16, BF16, F32)
    for name, x, settings, blend in (
        ("one-row", (3, 8, 1, 8), {}, (1.0, 0.0)),
        ("whole", (5, 16, 13, 12), {"mode": "convolution"}, (0.5, -2.0)),
        ("chunks", (2, 136, 9, 20), {}, (2.0, 1.0)),
        ("groups", (1, 128, 7, 36), {}, (1.0, 0.0)),
    )
)
# Small planes: rows of one segment and of several, odd and even; several blocks of channels, of which the last has fewer; padding
# that differs on every side, and none.
PLANES = ("NCHW",) * 3
IN_PLANES = tuple(
    Geometry(
        f"planes-{size}x{size}-{dtype.value}-{name}",
        x,
        (size, size),
        settings,
        1,
        dtype,
        layouts,
        alpha=blend[0],
        beta=blend[1],
        directions=tuple(Direction) if name != "odd-padding" else (Direction.FORWARD, Direction.BACKWARD_FILTER),
        written_for="depthwise_planes",
    )
    for size in (5, 7)
    for dtype in (F16, BF16, F32)
    for name, x, layouts, settings, blend in (
        ("whole", (4, 20, 14, 14), PLANES, {"padding": size // 2}, (1.0, 0.0)),
        ("odd", (2, 5, 7, 7), PLANES, {"padding": size // 2}, (2.0, 1.0)),
        ("segments", (2, 3, 9, 30), PLANES, {"padding": size // 2, "mode": "convolution"}, (0.5, -2.0)),
        ("odd-padding", (1, 3, 8, 17), PLANES, {"padding": ((1, size + 1), (size + 1, 2))}, (1.0, 0.0)),
        ("less-padding", (1, 4, 9, 12), PLANES, {"padding": ((size - 1, 1), (1, size - 1))}, (0.5, 1.0)),
        ("no-padding", (2, 2, size + 3, size + 12), PLANES, {}, (1.0, 0.0)),
    )
)

GEOMETRIES = (
    Geometry("3x3", (2, 3, 19, 37), (3, 3), {"padding": 1}),
    Geometry("3x3-stride-2", (2, 3, 17, 13), (3, 3), {"padding": 1, "stride": 2}),
    Geometry("5x5", (1, 2, 11, 9), (5, 5), {"padding": 2}),
    Geometry("9x1", (1, 2, 21, 6), (9, 1), {"padding": (4, 0)}),
    Geometry("1x11", (1, 2, 3, 23), (1, 11), {"padding": (0, 5), "stride": (1, 3)}),
    Geometry("dilation", (1, 3, 23, 17), (3, 4), {"padding": 2, "dilation": (3, 2)}),
    Geometry("stride-and-dilation", (1, 2, 31, 29), (3, 3), {"padding": 4, "stride": (4, 2), "dilation": (6, 3)}),
    Geometry("stride-past-the-filter", (1, 2, 14, 15), (2, 2), {"stride": (3, 4)}),
    Geometry("asymmetric-padding", (1, 3, 6, 7), (3, 2), {"padding": ((0, 4), (3, 0))}),
    Geometry("true-convolution", (2, 3, 7, 6), (3, 2), {"padding": 1, "mode": "convolution"}),
    Geometry("multiplier-3", (2, 3, 9, 8), (3, 3), {"padding": 1}, multiplier=3),
    Geometry("gaps-blend", (2, 3, 6, 7), (3, 3), {"padding": 1}, layouts=("gaps",) * 3, alpha=-0.5, beta=2.0),
    Geometry("1d", (2, 5, 40), (4,), {"spatial_ndim": 1, "padding": [(3, 0)]}),
    Geometry("1d-nlc", (2, 12, 21), (4,), {"spatial_ndim": 1, "padding": [(3, 0)]}, layouts=NHWC),
    Geometry("chwn", (3, 4, 7, 6), (3, 3), {"padding": 1}, layouts=("CHWN", "CHWN", "CHWN")),
    Geometry("nchw-to-nhwc", (2, 8, 6, 7), (3, 3), {"padding": 1}, layouts=("NCHW", "NCHW", "NHWC")),
    Geometry("height-innermost", (1, 2, 13, 9), (3, 3), {"padding": 1}, layouts=("columns", "NCHW", "columns")),
    Geometry("nhwc", (2, 40, 13, 11), (3, 3), {"padding": 1}, layouts=NHWC),
    Geometry("nhwc-many-channels", (1, 140, 7, 7), (3, 3), {"padding": 1}, layouts=NHWC),
    Geometry("nhwc-stride-2", (1, 16, 12, 13), (3, 3), {"padding": 1, "stride": 2}, layouts=("NHWC",) * 3),
    Geometry(
        "nhwc-dilation", (1, 8, 15, 17), (3, 3), {"padding": 3, "dilation": (2, 3), "stride": (1, 2)}, layouts=NHWC
    ),
    Geometry("nhwc-7x7", (1, 12, 9, 10), (7, 7), {"padding": 3}, layouts=NHWC),
    Geometry("nhwc-7x7-fp16", (1, 16, 8, 9), (7, 7), {"padding": 3}, dtype=F16, layouts=NHWC),
    Geometry("nhwc-7x7-bf16", (2, 8, 7, 8), (7, 7), {"padding": 3}, dtype=BF16, layouts=NHWC),
    Geometry("nhwc-odd-channels", (2, 13, 7, 6), (3, 3), {"padding": 1}, layouts=NHWC),
    Geometry("nhwc-multiplier-2", (1, 6, 8, 9), (3, 3), {"padding": 1}, multiplier=2, layouts=NHWC),
    Geometry("nhwc-blend", (2, 8, 6, 7), (3, 3), {"padding": 1}, layouts=NHWC, alpha=2.0, beta=-1.0),
    Geometry("nhwc-large-filter", (1, 4, 61, 3), (61, 1), {"padding": (30, 0)}, layouts=NHWC),
    Geometry("nhwc-filter-too-large", (1, 4, 3, 5), (60, 60), {"padding": 30}, layouts=NHWC, directions=TO_IMAGES),
    Geometry("fp16", (1, 3, 18, 14), (3, 3), {"padding": 1}, dtype=F16),
    Geometry("fp16-nhwc", (2, 24, 9, 8), (3, 3), {"padding": 1, "stride": 2}, dtype=F16, layouts=NHWC),
    Geometry("bf16", (1, 3, 10, 14), (5, 3), {"padding": (2, 1)}, dtype=BF16, alpha=0.5, beta=1.0),
    Geometry("bf16-nhwc", (1, 20, 9, 8), (3, 3), {"padding": 1}, dtype=BF16, layouts=NHWC),
    Geometry("fp64", (1, 3, 9, 8), (3, 3), {"padding": 1}, multiplier=2, dtype=F64),
    Geometry("fp64-nhwc", (1, 6, 9, 8), (3, 3), {"padding": 1}, dtype=F64, layouts=NHWC),
    *TILED,
    *BY_ROWS,
    *IN_STRIPS,
    *IN_BANDS,
    *IN_MANY_BANDS,
    *DOWN_COLUMNS,
    *IN_PLANES,
    Geometry("batch-0", (0, 4, 5, 5), (3, 3)),
    Geometry("batch-0-nhwc", (0, 4, 5, 5), (3, 3), layouts=NHWC),
)


def _describe(shape: tuple[int, ...], dtype: DType, layout: str) -> Any:
    if layout == "columns":
        swapped = describe((*shape[:2], shape[3], shape[2]), dtype, "NCHW")
        return swapped.transposed(0, 1, 3, 2)
    return describe(shape, dtype, layout)


def _problem(geometry: Geometry, direction: Direction) -> ConvolutionProblem:
    settings, channels = dict(geometry.settings), geometry.x[1]
    conv = ConvolutionDescriptor.make(settings.pop("spatial_ndim", 2), groups=max(channels, 1), **settings)
    w = (channels * geometry.multiplier, 1, *geometry.window)
    shapes = (geometry.x, w, conv.output_shape(geometry.x, w))
    x, w_, y = (_describe(s, geometry.dtype, layout) for s, layout in zip(shapes, geometry.layouts, strict=True))
    return ConvolutionProblem(direction, x, w_, y, conv)


CASES = tuple(
    Case(
        f"depthwise-{d.value}-{geometry.name}",
        _problem(geometry, d),
        geometry.alpha,
        geometry.beta,
        (geometry.written_for,),
    )
    for geometry in GEOMETRIES
    for d in geometry.directions
)
