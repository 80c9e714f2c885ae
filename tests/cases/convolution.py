"""Convolutions: each line is a geometry, run in all three directions; those of int8, forward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction
from tests.cases.case import Case, describe

__all__ = ["CASES", "Geometry", "cases"]

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64
I8, I32 = DType.INT8, DType.INT32


@dataclass(frozen=True)
class Geometry:
    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    dtype: DType = F32
    layouts: tuple[str, str, str] = ("NCHW", "NCHW", "NCHW")
    alpha: float = 1.0
    beta: float = 0.0
    y_dtype: DType | None = None

    @property
    def directions(self) -> tuple[Direction, ...]:
        return tuple(Direction) if self.dtype.is_floating else (Direction.FORWARD,)

    def problem(self, direction: Direction) -> ConvolutionProblem:
        settings = dict(self.settings)
        conv = ConvolutionDescriptor.make(settings.pop("spatial_ndim", 2), **settings)
        shapes, dtypes = (
            (self.x, self.w, conv.output_shape(self.x, self.w)),
            (self.dtype, self.dtype, self.y_dtype or self.dtype),
        )
        x, w, y = (describe(*each) for each in zip(shapes, dtypes, self.layouts, strict=True))
        return ConvolutionProblem(direction, x, w, y, conv)


GEOMETRIES = (
    Geometry("1x1", (2, 3, 5, 4), (4, 3, 1, 1)),
    Geometry("3x3-same", (2, 3, 7, 6), (5, 3, 3, 3), {"padding": 1}),
    Geometry("5x3-odd", (1, 2, 9, 8), (3, 2, 5, 3), {"padding": (2, 1)}),
    Geometry("stride-2", (2, 3, 9, 7), (4, 3, 3, 3), {"padding": 1, "stride": 2}),
    Geometry("stride-past-the-filter", (1, 2, 10, 11), (2, 2, 2, 2), {"stride": (3, 4)}),
    Geometry("stride-leaves-a-rest", (2, 2, 8, 8), (3, 2, 3, 3), {"stride": 3}),
    Geometry("dilation-2", (1, 3, 11, 10), (2, 3, 3, 3), {"dilation": 2, "padding": (1, 2)}),
    Geometry("dilation-and-stride", (2, 2, 13, 12), (3, 2, 3, 2), {"dilation": (3, 2), "stride": 2, "padding": 2}),
    Geometry("groups-2", (2, 6, 6, 5), (4, 3, 3, 3), {"groups": 2, "padding": 1}),
    Geometry("depthwise", (2, 5, 7, 7), (5, 1, 3, 3), {"groups": 5, "padding": 1}),
    Geometry("depthwise-multiplier-3", (1, 4, 6, 6), (12, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    Geometry("padding-wider-than-input", (1, 2, 2, 3), (2, 2, 3, 3), {"padding": (4, 3)}),
    Geometry("asymmetric-padding", (2, 3, 6, 7), (4, 3, 3, 2), {"padding": ((0, 2), (1, 0))}),
    Geometry("true-convolution", (2, 3, 6, 6), (3, 3, 3, 2), {"padding": 1, "mode": "convolution"}),
    Geometry("filter-is-the-input", (3, 4, 5, 5), (6, 4, 5, 5)),
    Geometry("even-filter", (1, 1, 8, 8), (2, 1, 4, 4), {"padding": 1}),
    Geometry("nhwc", (2, 5, 6, 7), (4, 5, 3, 3), {"padding": 1}, layouts=("NHWC", "NHWC", "NHWC")),
    Geometry("chwn", (3, 2, 5, 4), (3, 2, 3, 3), {"padding": 1}, layouts=("CHWN", "CHWN", "CHWN")),
    Geometry("mixed-layouts", (2, 4, 6, 5), (6, 2, 3, 3), {"groups": 2}, layouts=("NHWC", "NCHW", "CHWN")),
    Geometry("gaps", (2, 3, 5, 6), (4, 3, 3, 3), {"padding": 1}, layouts=("gaps", "gaps", "gaps")),
    Geometry("blend", (2, 3, 5, 5), (4, 3, 3, 3), {"padding": 1}, alpha=-0.5, beta=2.0),
    Geometry("blend-gaps", (1, 3, 4, 5), (2, 3, 2, 2), layouts=("gaps", "NCHW", "gaps"), alpha=3.0, beta=-1.0),
    Geometry("alpha-0", (1, 2, 4, 4), (2, 2, 3, 3), alpha=0.0, beta=1.0),
    Geometry("1d", (2, 3, 11), (4, 3, 3), {"spatial_ndim": 1, "padding": 1, "stride": 2}),
    Geometry("3d", (1, 2, 4, 5, 6), (3, 2, 2, 3, 3), {"spatial_ndim": 3, "padding": (0, 1, 1), "stride": (1, 2, 1)}),
    Geometry("3d-fp64", (1, 2, 4, 4, 3), (3, 2, 2, 3, 2), {"spatial_ndim": 3, "padding": 1}, dtype=F64),
    Geometry("4d", (1, 2, 3, 3, 4, 3), (2, 2, 2, 2, 2, 2), {"spatial_ndim": 4, "padding": (1, 0, 0, 1)}),
    Geometry(
        "4d-fp64", (1, 2, 3, 3, 4, 3), (2, 2, 2, 2, 2, 2), {"spatial_ndim": 4, "padding": (1, 0, 0, 1)}, dtype=F64
    ),
    Geometry("one-everything", (1, 1, 1, 1), (1, 1, 1, 1)),
    Geometry("batch-0", (0, 2, 5, 5), (3, 2, 3, 3)),
    Geometry("fp64", (2, 3, 6, 5), (4, 3, 3, 3), {"padding": 1, "stride": 2}, dtype=F64),
    Geometry("fp64-groups-nhwc", (1, 4, 5, 5), (4, 2, 3, 3), {"groups": 2}, dtype=F64, layouts=("NHWC",) * 3),
    Geometry("many-channels", (1, 70, 6, 5), (67, 70, 1, 3)),
    Geometry("longer-than-a-tile", (2, 3, 12, 12), (130, 3, 3, 3), {"padding": 1}),
    Geometry("one-output", (1, 19, 7, 7), (1, 19, 7, 7)),
    Geometry("fp16", (2, 3, 7, 6), (5, 3, 3, 3), {"padding": 1}, dtype=F16),
    Geometry(
        "fp16-nhwc-stride-2", (2, 8, 9, 8), (16, 8, 3, 3), {"padding": 1, "stride": 2}, dtype=F16, layouts=("NHWC",) * 3
    ),
    Geometry("fp16-gaps-blend", (2, 4, 5, 6), (6, 2, 3, 2), {"groups": 2}, F16, ("gaps",) * 3, alpha=0.5, beta=-2.0),
    Geometry("fp16-3d", (1, 3, 4, 4, 3), (4, 3, 2, 3, 2), {"spatial_ndim": 3, "padding": 1}, dtype=F16),
    Geometry(
        "fp16-4d", (1, 2, 3, 3, 4, 3), (2, 2, 2, 2, 2, 2), {"spatial_ndim": 4, "padding": (1, 0, 0, 1)}, dtype=F16
    ),
    Geometry("fp16-nhwc", (2, 40, 7, 9), (72, 40, 3, 3), {"padding": 1}, dtype=F16, layouts=("NHWC",) * 3),
    Geometry(
        "fp16-nhwc-odd-filters", (2, 24, 6, 5), (13, 24, 3, 2), {"padding": (1, 0)}, F16, ("NHWC",) * 3, 0.5, -2.0
    ),
    Geometry(
        "fp16-nchw-vectors", (2, 16, 7, 6), (24, 16, 3, 3), {"padding": 1, "stride": (1, 2)}, F16, alpha=0.5, beta=-2.0
    ),
    Geometry("fp16-nhwc-in-nchw-out", (1, 16, 4, 6), (24, 16, 1, 1), {}, F16, ("NHWC", "NHWC", "NCHW"), 1.0, 0.5),
    Geometry("fp16-1x1-nchw", (2, 24, 4, 6), (40, 24, 1, 1), dtype=F16, beta=1.0),
    Geometry("fp16-1x1-stride-2-nhwc", (2, 24, 5, 6), (16, 24, 1, 1), {"stride": 2}, dtype=F16, layouts=("NHWC",) * 3),
    Geometry("fp16-chwn", (16, 8, 5, 4), (24, 8, 3, 3), {"padding": 1}, dtype=F16, layouts=("CHWN",) * 3),
    Geometry(
        "bf16-nhwc-groups",
        (1, 48, 9, 7),
        (48, 16, 3, 2),
        {"groups": 3, "stride": 2, "padding": ((0, 2), (1, 0))},
        BF16,
        ("NHWC",) * 3,
        -0.5,
        1.0,
    ),
    Geometry(
        "bf16-nhwc-true-convolution",
        (2, 16, 9, 8),
        (24, 16, 3, 3),
        {"mode": "convolution", "dilation": 2, "padding": 2},
        BF16,
        ("NHWC",) * 3,
    ),
    Geometry("bf16", (2, 3, 9, 7), (4, 3, 3, 3), {"padding": 1, "stride": 2}, dtype=BF16),
    Geometry("bf16-true-convolution", (1, 4, 8, 6), (8, 4, 3, 3), {"mode": "convolution", "dilation": 2}, dtype=BF16),
    Geometry("bf16-1d-blend", (2, 6, 17), (4, 3, 5), {"spatial_ndim": 1, "groups": 2}, dtype=BF16, alpha=2.0, beta=1.0),
    Geometry("bf16-3d", (1, 2, 4, 4, 3), (3, 2, 2, 3, 2), {"spatial_ndim": 3, "padding": 1}, dtype=BF16),
    Geometry("int8", (2, 3, 7, 6), (5, 3, 3, 3), {"padding": 1}, dtype=I8, alpha=1 / 1024),
    Geometry("int8-saturates", (1, 4, 6, 5), (3, 4, 3, 3), {"padding": 1}, I8, ("NHWC",) * 3, alpha=1 / 64, beta=1.0),
    Geometry("int8-to-int32", (2, 6, 9, 8), (4, 3, 3, 3), {"groups": 2, "stride": 2}, dtype=I8, y_dtype=I32),
    Geometry("int8-to-int32-blend", (1, 64, 6, 6), (4, 64, 3, 3), dtype=I8, alpha=3.0, beta=-2.0, y_dtype=I32),
    Geometry(
        "int8-to-float32", (2, 5, 7, 6), (4, 5, 3, 2), {"padding": 1}, dtype=I8, alpha=0.01, beta=0.5, y_dtype=F32
    ),
    Geometry("int8-3d", (1, 2, 4, 4, 3), (3, 2, 2, 3, 2), {"spatial_ndim": 3, "padding": 1}, dtype=I8, alpha=1 / 512),
    Geometry("int8-3d-to-int32", (1, 2, 4, 4, 3), (3, 2, 2, 3, 2), {"spatial_ndim": 3}, dtype=I8, y_dtype=I32),
    Geometry("int8-4d", (1, 2, 3, 3, 4, 3), (2, 2, 2, 2, 2, 2), {"spatial_ndim": 4}, dtype=I8, y_dtype=I32),
    Geometry("int8-1d", (2, 6, 17), (8, 3, 5), {"spatial_ndim": 1, "groups": 2, "padding": 2}, I8, y_dtype=I32),
    Geometry(
        "int8-true-convolution", (2, 5, 8, 6), (7, 5, 3, 2), {"padding": 1, "mode": "convolution"}, I8, y_dtype=I32
    ),
    Geometry("int8-dilation", (2, 3, 13, 12), (5, 3, 3, 2), {"dilation": (3, 2), "stride": 2}, I8, y_dtype=I32),
    Geometry("int8-padding-wider", (1, 7, 2, 3), (9, 7, 3, 3), {"padding": ((4, 3), (0, 5))}, I8, y_dtype=I32),
    Geometry("int8-chwn", (3, 5, 6, 4), (6, 5, 3, 3), {"padding": 1}, I8, ("CHWN",) * 3, y_dtype=I32),
    Geometry("int8-gaps-blend", (2, 6, 5, 6), (8, 3, 3, 2), {"groups": 2}, I8, ("gaps",) * 3, 3.0, -2.0, I32),
    Geometry(
        "int8-nhwc-odd", (2, 11, 6, 7), (13, 11, 3, 3), {"padding": 1}, I8, ("NHWC",) * 3, alpha=1 / 4096, beta=0.5
    ),
    Geometry(
        "int8-nhwc-vectors", (2, 32, 7, 6), (48, 32, 3, 3), {"padding": 1, "stride": 2}, I8, ("NHWC",) * 3, 1 / 8192
    ),
    Geometry(
        "int8-nhwc-vectors-groups", (1, 48, 6, 5), (12, 16, 2, 3), {"groups": 3}, I8, ("NHWC",) * 3, -1.0, 1.0, I32
    ),
    Geometry("int8-nhwc-in-nchw-out", (1, 16, 5, 6), (5, 16, 1, 1), {}, I8, ("NHWC", "NHWC", "NCHW"), 0.01, 0.0, F32),
    Geometry("int8-depthwise", (2, 5, 7, 7), (5, 1, 3, 3), {"groups": 5, "padding": 1}, I8, y_dtype=I32),
    Geometry("int8-many-channels", (1, 70, 6, 5), (67, 70, 1, 3), {}, I8, y_dtype=I32),
    Geometry("int8-long-sum-nhwc", (1, 400, 3, 3), (6, 400, 3, 3), {}, I8, ("NHWC",) * 3, 1 / 65536, 1.0),
    Geometry("int8-batch-0", (0, 2, 5, 5), (3, 2, 3, 3), {}, I8),
)


def cases(prefix: str, geometries: Iterable[Geometry], *written_for: str) -> tuple[Case, ...]:
    """A case for each direction of each geometry."""
    return tuple(
        Case(f"{prefix}-{d.value}-{geometry.name}", geometry.problem(d), geometry.alpha, geometry.beta, written_for)
        for geometry in geometries
        for d in geometry.directions
    )


TF32 = (
    Geometry("tf32", (2, 8, 7, 6), (12, 8, 3, 3), {"padding": 1, "math": "tf32"}, alpha=2.0, beta=-0.5),
    Geometry("tf32-nhwc", (2, 40, 7, 9), (72, 40, 3, 3), {"padding": 1, "math": "tf32"}, layouts=("NHWC",) * 3),
    Geometry(
        "tf32-nhwc-blend", (1, 12, 9, 8), (20, 12, 3, 2), {"stride": 2, "math": "tf32"}, F32, ("NHWC",) * 3, 0.5, -2.0
    ),
)

RELAID = (
    Geometry("fp16-odd-channels", (2, 13, 7, 6), (16, 13, 3, 3), {"padding": 1}, F16, alpha=2.0, beta=-0.5),
    Geometry("fp16-odd-channels-nhwc", (2, 67, 7, 9), (72, 67, 3, 3), {"padding": 1}, F16, ("NHWC",) * 3),
    Geometry("bf16-odd-both-stride-nhwc", (2, 21, 9, 8), (13, 21, 3, 2), {"stride": 2}, BF16, ("NHWC",) * 3, 0.5, -2.0),
    Geometry("bf16-odd-filters", (2, 24, 6, 7), (69, 24, 1, 1), {}, BF16),
    Geometry("fp16-odd-filters-of-images", (2, 3, 13, 12), (17, 3, 5, 5), {"stride": 2, "padding": 2}, F16, beta=1.0),
    Geometry("fp16-one-channel", (2, 1, 9, 10), (8, 1, 3, 3), {"padding": 1}, F16, ("NHWC",) * 3),
    Geometry("tf32-odd-both", (2, 11, 7, 6), (13, 11, 3, 3), {"padding": 1, "math": "tf32"}),
)
"""Pixels that do not begin at multiples of 16 bytes, but for those of what is written for another number of channels."""

MERGED = (Geometry("1x1-planes-of-5x5", (3, 40, 5, 5), (24, 40, 1, 1), alpha=-0.5, beta=2.0),)
PLANES = (Geometry("1x1-planes-blend", (2, 40, 4, 6), (24, 40, 1, 1), alpha=0.5, beta=-2.0),)

WIDE = (
    Geometry("wide-fp16", (2, 3, 7, 6), (5, 3, 3, 3), {"padding": 1}, F16),
    Geometry("wide-bf16-nhwc-blend", (2, 12, 9, 7), (20, 12, 3, 2), {"stride": 2}, BF16, ("NHWC",) * 3, 0.5, -2.0),
    Geometry("wide-fp16-long-sum-nhwc", (2, 72, 13, 11), (40, 72, 1, 1), {}, F16, ("NHWC",) * 3),
    Geometry("wide-bf16-long-sum-blend", (3, 24, 15, 16), (16, 24, 1, 1), {}, BF16, alpha=-1.0, beta=0.5),
    Geometry("wide-fp16-groups", (2, 6, 6, 5), (4, 3, 3, 3), {"groups": 2, "padding": 1}, F16, beta=1.0),
    Geometry("wide-fp16-3d", (1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"spatial_ndim": 3}, F16, ("gaps",) * 3),
    Geometry("wide-bf16-convolution", (1, 2, 6, 5), (3, 2, 3, 2), {"mode": "convolution"}, BF16),
    Geometry("wide-fp16-batch-0", (0, 2, 5, 5), (3, 2, 3, 3), {}, F16, beta=1.0),
)
"""Whose filter gradient is in float32."""


def wide_cases(geometries: Iterable[Geometry]) -> tuple[Case, ...]:
    """A case for each geometry."""
    problems = [(each, each.problem(Direction.BACKWARD_FILTER)) for each in geometries]
    return tuple(
        Case(f"convolution-{each.name}", replace(problem, w=problem.w.with_dtype(F32)), each.alpha, each.beta)
        for each, problem in problems
    )


THIN = (Geometry("bf16-1x1-thin", (2, 24, 5, 7), (72, 24, 1, 1), {}, BF16, ("NHWC",) * 3, 0.5, -2.0),)

CASES = (
    *cases("convolution", GEOMETRIES),
    *(case for case in cases("convolution", THIN, "implicit_gemm_thin") if "forward" in case.name),
    *cases("convolution", TF32, "implicit_gemm_wgmma", "implicit_gemm_tf32", "implicit_gemm_wgmma_relaid"),
    *cases("convolution", RELAID, "implicit_gemm_wgmma_relaid"),
    *cases("convolution", PLANES, "implicit_gemm_3xtf32", "implicit_gemm_3xtf32_merged"),
    *cases("convolution", MERGED, "implicit_gemm_3xtf32_merged"),
    *wide_cases(WIDE),
)
