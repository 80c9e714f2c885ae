"""Reductions by every operator, with and without indices."""

from __future__ import annotations

from dnncore.descriptors import ReduceOperator
from dnncore.dtypes import DType
from dnncore.problems import ReduceProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64

# name, y shape, x shape, dtype, layout, alpha, beta
SHAPES = (
    ("channels", (1, 3, 1, 1), (2, 3, 3, 4), F32, "NCHW", 1.0, 0.0),
    ("rows-gaps-blend", (3, 1), (3, 37), F32, "gaps", 0.5, 2.0),
    ("columns", (1, 41), (5, 41), F64, "NCHW", 1.0, 0.0),
    ("nothing-reduced", (2, 3), (2, 3), F32, "NCHW", 1.0, 0.0),
    ("fp16", (1, 5, 1), (3, 5, 2), F16, "NCHW", 1.0, 0.0),
    ("bf16-nhwc", (2, 1, 1, 3), (2, 7, 2, 3), BF16, "NHWC", 1.0, 1.0),
    ("eight-dimensions", (1,) * 8, (2,) * 8, F32, "NCHW", 1.0, 0.0),
    ("lines-fp16", (4, 1), (4, 40), F16, "NCHW", 0.5, 2.0),
    ("half-lines-bf16", (1, 5, 1), (3, 5, 12), BF16, "NCHW", 1.0, 0.0),
    ("lines-bf16", (4, 1), (4, 40), BF16, "NCHW", 1.0, 0.0),
    ("half-lines", (4, 1), (4, 42), F32, "NCHW", 1.0, 0.0),
    ("half-lines-fp16", (4, 1), (4, 36), F16, "NCHW", 1.0, 0.0),
    ("lines-fp64", (1, 3, 1), (5, 3, 6), F64, "NCHW", 1.0, 1.0),
    ("lines-nhwc", (2, 1, 5, 3), (2, 16, 5, 3), F32, "NHWC", 1.0, 0.0),
    ("column-vectors", (3, 1, 36), (3, 7, 36), F32, "NCHW", 2.0, 1.0),
    ("column-vectors-fp16-nhwc", (2, 24, 1, 1), (2, 24, 5, 7), F16, "NHWC", 1.0, 0.0),
    ("lines-of-images", (2, 1, 1, 1), (2, 3, 4, 6), F32, "NCHW", 1.0, 0.0),
    ("lines-of-lines", (1, 3, 1, 2, 1), (2, 3, 2, 2, 8), F32, "NCHW", 1.0, 0.0),
    ("column-vectors-of-lines-fp16", (1, 3, 1, 8), (5, 3, 7, 8), F16, "NCHW", 1.0, 0.0),
    ("no-elements", (1, 3), (0, 3), F32, "NCHW", 1.0, 0.0),
    ("no-outputs", (0, 1), (0, 3), F32, "NCHW", 1.0, 0.0),
)

# In parts: enough elements per output that a team's smallest part is filled more than once.
LONG = (
    ("parts-of-columns", (1, 40), (131, 40), F32, "NCHW"),
    ("parts-of-a-row", (1,), (33001,), F32, "NCHW"),
    ("parts-of-a-row-fp64", (1,), (33001,), F64, "NCHW"),
    ("parts-of-columns-fp16", (1, 40), (131, 40), F16, "NCHW"),
    ("parts-of-a-row-fp16", (1,), (33001,), F16, "NCHW"),
    ("parts-of-columns-bf16", (1, 40), (131, 40), BF16, "NCHW"),
    ("parts-of-a-row-bf16", (1,), (33001,), BF16, "NCHW"),
    ("parts-of-columns-fp64", (1, 40), (131, 40), F64, "NCHW"),
    ("parts-of-lines-fp16", (1, 2, 1), (3, 2, 20000), F16, "NCHW"),
    ("parts-of-lines", (2, 1), (2, 28000), F32, "NCHW"),
    ("parts-of-column-vectors-bf16", (1, 72), (900, 72), BF16, "NCHW"),
    ("parts-of-column-vectors-fp64", (2, 1, 2), (2, 2000, 2), F64, "NCHW"),
)

# By an operator of each kind that has kernels of its own: forms that nothing above has.
KINDS = (
    ("column-vectors-bf16", (3, 1, 40), (3, 7, 40), BF16, "NCHW"),
    ("column-vectors-fp64", (3, 1, 6), (3, 7, 6), F64, "NCHW"),
    ("half-lines-fp64", (4, 1), (4, 37), F64, "NCHW"),
)


def _cases() -> tuple[Case, ...]:
    cases = []
    for operator in ReduceOperator:
        for name, small, large, dtype, layout, alpha, beta in SHAPES:
            x, y = describe(large, dtype, layout), describe(small, dtype, layout)
            label = f"reduce-{operator.value}-{name}"
            cases.append(Case(label, ReduceProblem(x, y, operator), alpha, beta))
            if operator.finds_an_element:
                indices = describe(small, DType.INT32, "gaps")
                cases.append(Case(f"{label}-indices", ReduceProblem(x, y, operator, indices), alpha, beta))
    for operator in (ReduceOperator.AMAX, ReduceOperator.NORM2):
        for label, few, many, kind, order in LONG:
            x, y = describe(many, kind, order), describe(few, kind, order)
            found = describe(few, DType.INT32, order) if operator.finds_an_element else None
            cases.append(Case(f"reduce-{operator.value}-{label}", ReduceProblem(x, y, operator, found)))
    for operator in (ReduceOperator.ADD, ReduceOperator.MUL, ReduceOperator.MIN):
        for label, few, many, kind, order in KINDS:
            problem = ReduceProblem(describe(many, kind, order), describe(few, kind, order), operator)
            cases.append(Case(f"reduce-{operator.value}-{label}", problem))
    return tuple(cases)


CASES = _cases()
