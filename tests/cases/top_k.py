"""The largest elements along a dimension."""

from __future__ import annotations

from dnncore.dtypes import DType
from dnncore.problems import TopKProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64

# name, x shape, axis, elements wanted, dtype, layout, alpha, beta
SHAPES = (
    ("five-of-classes", (3, 1000), 1, 5, F32, "NCHW", 1.0, 0.0),
    ("all-of-a-row", (2, 37), 1, 37, F32, "gaps", 0.5, 2.0),
    ("channels", (2, 7, 3, 2), 1, 3, F32, "NHWC", 1.0, 0.0),
    ("of-the-batch", (9, 4), 0, 2, F64, "gaps", 1.0, 1.0),
    ("one-row", (1100,), 0, 2, F16, "NCHW", 1.0, 0.0),
    ("bf16-ties", (2, 700), 1, 4, BF16, "NCHW", 1.0, 0.0),
    ("one-element", (2, 1, 3), 1, 1, F32, "NCHW", 1.0, 0.0),
    ("of-a-warp", (37, 129), 1, 7, F16, "NCHW", 1.0, 0.0),
    ("of-a-warp-strided", (5, 33, 3), 1, 32, F32, "gaps", 0.5, 1.0),
    ("of-a-full-warp", (6, 1024), 1, 32, BF16, "NCHW", 1.0, 0.0),
    ("fewer-than-lanes", (9, 20), 1, 20, F16, "NCHW", 1.0, 0.0),
    ("of-a-block", (3, 5000), 1, 5, F16, "NCHW", 1.0, 0.0),
    ("of-a-block-longer-than-it-keeps", (2, 9001), 1, 9, F32, "NCHW", -1.0, 0.5),
    ("none-wanted", (2, 3), 1, 0, F32, "NCHW", 1.0, 0.0),
    ("no-rows", (0, 3), 1, 2, F32, "NCHW", 1.0, 0.0),
)


def _cases() -> tuple[Case, ...]:
    cases = []
    for name, shape, axis, count, dtype, layout, alpha, beta in SHAPES:
        few = (*shape[:axis], count, *shape[axis + 1 :])
        x, values, indices = (
            describe(extents, kind, layout) for extents, kind in ((shape, dtype), (few, dtype), (few, DType.INT32))
        )
        cases.append(Case(f"top-k-{name}", TopKProblem(x, values, indices, axis), alpha, beta))
    return tuple(cases)


CASES = _cases()
