"""im2col and its adjoint: each line is a geometry, run both ways where its dtype has both."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.dtypes import DType
from dnncore.problems import Col2ImProblem, Im2ColProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64, I8 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT8


@dataclass(frozen=True)
class Geometry:
    name: str
    x: tuple[int, ...]
    window: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    dtype: DType = F32
    layouts: tuple[str, str] = ("NCHW", "NCHW")
    alpha: float = 1.0
    beta: float = 0.0


GEOMETRIES = (
    Geometry("3x3-same", (2, 3, 6, 8), (3, 3), {"padding": 1}),
    Geometry("1x1", (2, 3, 4, 4), (1, 1)),
    Geometry("whole-input", (2, 3, 4, 5), (4, 5)),
    Geometry("stride-and-dilation", (2, 2, 13, 12), (3, 2), {"dilation": (3, 2), "stride": (2, 3), "padding": 2}),
    Geometry("asymmetric-padding", (1, 3, 6, 7), (3, 2), {"padding": ((0, 2), (4, 0)), "stride": 2}),
    Geometry("true-convolution", (1, 2, 5, 6), (2, 3), {"padding": 1, "mode": "convolution", "groups": 2}),
    Geometry("fp16", (1, 3, 9, 9), (3, 3), {"padding": 1, "stride": 2}, dtype=F16),
    Geometry("bf16-blend", (1, 2, 6, 8), (3, 3), {"padding": 1}, dtype=BF16, alpha=0.5, beta=-2.0),
    Geometry("fp64-gaps", (2, 3, 5, 4), (2, 3), {"padding": 1}, dtype=F64, layouts=("gaps", "gaps"), beta=1.0),
    Geometry("int8", (1, 3, 8, 8), (3, 3), {"padding": 1}, dtype=I8),
    Geometry("int8-blend", (2, 3, 5, 7), (2, 2), dtype=I8, layouts=("NHWC", "gaps"), alpha=0.75, beta=2.0),
    Geometry("nhwc", (2, 5, 6, 7), (3, 3), {"padding": 1}, layouts=("NHWC", "NCHW")),
    Geometry("places-innermost-last", (2, 3, 5, 6), (3, 3), {"padding": 1}, layouts=("NCHW", "NHWC")),
    Geometry("1d", (2, 3, 11), (3,), {"spatial_ndim": 1, "padding": 1, "stride": 2}),
    Geometry("3d", (1, 2, 4, 5, 6), (2, 3, 3), {"spatial_ndim": 3, "padding": (0, 1, 1), "stride": (1, 2, 1)}),
    Geometry(
        "6d",
        (1, 1, 3, 3, 2, 3, 3, 4),
        (2, 2, 1, 2, 2, 3),
        {"spatial_ndim": 6, "padding": (0, 1, 0, 0, 0, 1)},
        dtype=F64,
    ),
    Geometry("batch-0", (0, 2, 5, 5), (3, 3)),
)


def _cases() -> tuple[Case, ...]:
    cases = []
    for g in GEOMETRIES:
        settings = dict(g.settings)
        conv = ConvolutionDescriptor.make(settings.pop("spatial_ndim", 2), **settings)
        places = conv.output_shape(g.x, (conv.groups, g.x[1] // conv.groups, *g.window))[2:]
        x = describe(g.x, g.dtype, g.layouts[0])
        shape = (g.x[0], g.x[1] * math.prod(g.window), math.prod(places))
        columns = describe(shape, g.dtype, g.layouts[1])
        cases.append(Case(f"im2col-{g.name}", Im2ColProblem(x, columns, conv, g.window), g.alpha, g.beta))
        if g.dtype.is_floating:
            cases.append(Case(f"col2im-{g.name}", Col2ImProblem(columns, x, conv, g.window), g.alpha, g.beta))
    return tuple(cases)


CASES = _cases()
