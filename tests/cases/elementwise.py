"""Filling, adding and combining tensors in every element type, by every kernel; transforms between element types."""

from __future__ import annotations

from itertools import product

from dnncore.cuda.elementwise import BINARY_OPERATORS
from dnncore.descriptors import BinaryOperator, UnaryOperator
from dnncore.dtypes import DType
from dnncore.problems import AddProblem, BinaryProblem, FillProblem, UnaryProblem, WhereProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

# In one piece; in rows that packs of 16 bytes do not fill; with gaps between all elements; with the channels innermost.
SHAPES = (
    ("vector", (83,), "NCHW"),
    ("rows", (3, 37), "gaps"),
    ("short-rows", (2, 3, 5), "gaps"),
    ("tiles", (2, 19, 17), "NHWC"),
)
INTEGERS = (DType.INT8, DType.UINT8, DType.INT32)
ARITHMETIC = tuple(operator for operator in BinaryOperator if operator.result(DType.INT32) is DType.INT32)
LOGIC = tuple(operator for operator in BinaryOperator if operator not in ARITHMETIC)
FLOATING = tuple(dtype for dtype in DType if dtype.is_floating)


def _same_dtype(dtype: DType, alpha: float, beta: float) -> list[Case]:
    cases = []
    for name, shape, layout in SHAPES:
        t, packed = describe(shape, dtype, layout), describe(shape, dtype, "NCHW")
        cases.append(Case(f"fill-{dtype.value}-{name}", FillProblem(t), alpha, beta))
        cases.append(Case(f"add-{dtype.value}-{name}", AddProblem(t, t), alpha, beta))
        cases.append(Case(f"add-{dtype.value}-{name}-to-packed", AddProblem(t, packed)))
    return cases


def _unary() -> list[Case]:
    """Every function has a kernel for tensors in one piece; one kernel computes all for other layouts, in each type."""
    cases = []
    for operator in UnaryOperator:
        for dtype in FLOATING:
            tries_all = operator is UnaryOperator.SQUARE or dtype is DType.FLOAT32
            for name, shape, layout in SHAPES[: 3 if tries_all else 1]:
                t = describe(shape, dtype, layout)
                cases.append(Case(f"unary-{operator.value}-{dtype.value}-{name}", UnaryProblem(t, t, operator)))
    t = describe((2, 3, 5), DType.FLOAT32, "gaps")
    cases.append(
        Case(
            "unary-exp-blend", UnaryProblem(t, describe((2, 3, 5), DType.FLOAT32, "NHWC"), UnaryOperator.EXP), -2.0, 0.5
        )
    )
    return cases


def _binary() -> list[Case]:
    cases = []
    for operator in ARITHMETIC:
        for dtype in FLOATING:
            tries_all = operator is BinaryOperator.SUB or dtype is DType.FLOAT32
            for name, shape, layout in SHAPES[: 3 if operator in BINARY_OPERATORS and tries_all else 1]:
                t = describe(shape, dtype, layout)
                problem = BinaryProblem(t, t, t, operator)
                cases.append(Case(f"binary-{operator.value}-{dtype.value}-{name}", problem))
            if operator in BINARY_OPERATORS:
                a, b = describe((2, 3, 37), dtype, "NCHW"), describe((1, 3, 1), dtype, "NCHW")
                cases.append(
                    Case(f"binary-{operator.value}-{dtype.value}-by-channels", BinaryProblem(a, b, a, operator))
                )
        a, b = describe((2, 5, 3, 4), DType.FLOAT32, "NCHW"), describe((1, 5, 1, 1), DType.FLOAT32, "NCHW")
        c = describe((2, 5, 3, 4), DType.FLOAT32, "NHWC")
        problem = BinaryProblem(a, b, c, operator, 0.5, -3.0)
        cases.append(Case(f"binary-{operator.value}-broadcast-blend", problem, 2.0, 0.25))
    return cases


def _broadcast() -> list[Case]:
    """Rows that packs of 16 bytes fill, and that end within one; several blocks; either operand, and both; blended and not."""
    cases = []
    for dtype in (DType.FLOAT16, DType.FLOAT32):
        for name, of_a, of_b in (
            ("full-rows", (7, 32), (1, 32)),
            ("odd-rows", (7, 19), (1, 19)),
            ("rows-of-one-value", (3, 5, 163), (3, 5, 1)),
            ("images", (2, 1, 53), (2, 3, 53)),
            ("outer-product", (3, 1, 21), (1, 5, 21)),
            ("rows-by-columns", (5, 1), (1, 40)),
        ):
            a, b = describe(of_a, dtype, "NCHW"), describe(of_b, dtype, "NCHW")
            c = describe(tuple(map(max, of_a, of_b)), dtype, "NCHW")
            problem = BinaryProblem(a, b, c, BinaryOperator.SUB, 0.5, -3.0)
            cases.append(Case(f"broadcast-{dtype.value}-{name}", problem))
            cases.append(Case(f"broadcast-{dtype.value}-{name}-blend", problem, 2.0, 0.25))
    for dtype in DType:
        t, bias = describe((2, 3, 37), dtype, "NCHW"), describe((1, 3, 1), dtype, "NCHW")
        cases.append(Case(f"add-{dtype.value}-bias", AddProblem(bias, t), 1.0, 1.0 if dtype.is_floating else 0.0))
    return cases


def _rare() -> list[Case]:
    """One kernel computes all of it, in all types."""
    cases = []
    for operator, dtype in (*product(ARITHMETIC, INTEGERS), *product(LOGIC, (DType.FLOAT32, DType.INT32, DType.BOOL))):
        a, b = describe((3, 4, 5), dtype, "gaps"), describe((1, 4, 1), dtype, "NCHW")
        c = describe((3, 4, 5), operator.result(dtype), "NHWC")
        cases.append(Case(f"binary-{operator.value}-{dtype.value}", BinaryProblem(a, b, c, operator)))
    condition = describe((3, 1, 5), DType.BOOL, "NCHW")
    for dtype in DType:
        t = describe((3, 4, 5), dtype, "gaps")
        problem = WhereProblem(condition, describe((1, 4, 1), dtype, "NCHW"), t, t)
        cases.append(Case(f"where-{dtype.value}", problem, 2.0, 0.5 if dtype.is_floating else 0.0))
        blend = (0.5, -1.0) if dtype.is_floating else (1.0, 0.0)
        for name, shape, layout in SHAPES[:3]:
            t = describe(shape, dtype, layout)
            chosen = WhereProblem(describe(shape, DType.BOOL, layout), t, t, t)
            cases.append(Case(f"where-{dtype.value}-{name}", chosen, *blend))
        mask, filler = describe((2, 1, 3, 37), DType.BOOL, "NCHW"), describe((1, 1, 1, 1), dtype, "NCHW")
        t = describe((2, 3, 3, 37), dtype, "NCHW")
        cases.append(Case(f"where-{dtype.value}-masked-rows", WhereProblem(mask, filler, t, t)))
    bits = describe((2, 3, 5), DType.BOOL, "gaps")
    cases.append(Case("fill-bool", FillProblem(bits), 2.0))
    cases.append(Case("add-bool", AddProblem(bits, describe((2, 3, 5), DType.BOOL, "NHWC"))))
    return cases


def _pixels() -> list[Case]:
    """More pixels than a tile has, the second image's not at a multiple of 16 bytes; more channels than are read at once."""
    return [
        Case(
            f"transform-pixels-{name}",
            AddProblem(describe(shape, DType.FLOAT32, "NCHW"), describe(shape, dtype, "NHWC")),
            *blend,
        )
        for name, shape, dtype, blend in (
            ("fp16", (2, 3, 33, 34), DType.FLOAT16, (1.0, 0.0)),
            ("bf16-blend", (2, 7, 6, 8), DType.BFLOAT16, (0.25, -1.0)),
        )
    ]


def _filters() -> list[Case]:
    """To channels innermost and back: all taps in a tile and several tiles of channels, pairs and odd numbers, more taps than a
    tile has, and none.
    """
    return [
        Case(
            f"transform-filters-{name}",
            AddProblem(describe(shape, a, layouts[0]), describe(shape, c, layouts[1])),
            *blend,
        )
        for name, shape, a, c, layouts, blend in (
            ("to-fp16", (5, 270, 3, 3), DType.FLOAT32, DType.FLOAT16, ("NCHW", "NHWC"), (1.0, 0.0)),
            ("to-fp16-odd", (3, 71, 3, 3), DType.FLOAT32, DType.FLOAT16, ("NCHW", "NHWC"), (1.0, 0.0)),
            ("to-bf16-blend", (2, 34, 2, 4), DType.FLOAT32, DType.BFLOAT16, ("NCHW", "NHWC"), (0.5, -1.0)),
            ("to-bf16-many-taps", (2, 66, 11, 9), DType.FLOAT32, DType.BFLOAT16, ("NCHW", "NHWC"), (1.0, 0.0)),
            ("from-fp16", (5, 270, 3, 3), DType.FLOAT16, DType.FLOAT32, ("NHWC", "NCHW"), (1.0, 0.0)),
            ("from-fp16-blend", (3, 71, 3, 3), DType.FLOAT16, DType.FLOAT32, ("NHWC", "NCHW"), (2.0, -0.5)),
            ("from-bf16-many-taps", (2, 66, 11, 9), DType.BFLOAT16, DType.FLOAT32, ("NHWC", "NCHW"), (1.0, 0.0)),
            ("none-to-fp16", (0, 66, 3, 3), DType.FLOAT32, DType.FLOAT16, ("NCHW", "NHWC"), (1.0, 0.0)),
            ("no-taps-from-fp16", (2, 66, 0, 3), DType.FLOAT16, DType.FLOAT32, ("NHWC", "NCHW"), (1.0, 0.0)),
            ("planes-to-fp16", (2, 66, 3, 3), DType.FLOAT32, DType.FLOAT16, ("NHWC", "NCHW"), (1.0, 0.0)),
        )
    ]


def _convert() -> list[Case]:
    return [
        Case(
            f"transform-{a.value}-to-{c.value}",
            AddProblem(describe((3, 1, 5), a, "gaps"), describe((3, 7, 5), c, "NHWC")),
            0.25,
            -1.0 if c.is_floating else 0.0,
        )
        for a in DType
        for c in DType
        if a is not c
    ]


CASES = (
    *(case for dtype in FLOATING for case in _same_dtype(dtype, -1.5, 0.5)),
    *(
        Case(
            f"add-{a.value}-to-{c.value}-{batch}",
            AddProblem(*(describe((batch, 5, 7, 9), d, "NHWC") for d in (a, c))),
            alpha,
            beta,
        )
        for a, c, alpha, beta in (
            (DType.FLOAT16, DType.INT8, 40.0, 0.0),
            (DType.INT8, DType.FLOAT16, 0.25, -0.5),
            (DType.FLOAT32, DType.FLOAT16, 1.0, 0.0),
            (DType.FLOAT16, DType.FLOAT32, -2.0, 1.0),
            (DType.FLOAT32, DType.BFLOAT16, 0.5, -1.0),
            (DType.BFLOAT16, DType.FLOAT32, 1.0, 0.0),
        )
        for batch in (1, 3)
    ),
    *(case for dtype in INTEGERS for case in _same_dtype(dtype, 3.0, 0.0)),
    *_unary(),
    *_binary(),
    *_broadcast(),
    *_rare(),
    *_convert(),
    *_filters(),
    *_pixels(),
)
