"""Adding with broadcast, transforming layouts, summing, multiplying matrices."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import AddProblem, MatmulProblem, SumProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64

# name, small shape, large shape, dtype, small layout, large layout, alpha, beta
PAIRS = (
    ("bias", (1, 5, 1, 1), (2, 5, 3, 4), F32, "NCHW", "NCHW", 1.0, 1.0),
    ("bias-nhwc", (1, 5, 1, 1), (2, 5, 3, 4), F32, "NHWC", "NHWC", 1.0, 1.0),
    ("image", (1, 1, 3, 4), (2, 5, 3, 4), F32, "NCHW", "NCHW", 0.5, -1.0),
    ("feature-map", (1, 5, 3, 4), (2, 5, 3, 4), F64, "NCHW", "NCHW", 1.0, 1.0),
    ("scalar", (1, 1), (33, 65), F32, "NCHW", "NCHW", 1.0, 0.0),
    ("same", (2, 3, 4, 5), (2, 3, 4, 5), F32, "NCHW", "NCHW", 2.0, 3.0),
    ("same-vector", (1029,), (1029,), F32, "NCHW", "NCHW", -1.0, 1.0),
    ("same-fp64", (2, 3, 4, 5), (2, 3, 4, 5), F64, "NCHW", "NCHW", 1.0, 0.0),
    ("nchw-to-nhwc", (2, 3, 4, 5), (2, 3, 4, 5), F32, "NCHW", "NHWC", 1.0, 0.0),
    ("gaps-to-chwn", (2, 3, 4, 5), (2, 3, 4, 5), F64, "gaps", "CHWN", 1.0, 0.0),
    ("packed-to-gaps", (2, 3, 5), (2, 3, 5), F32, "NCHW", "gaps", 1.0, 0.5),
    ("rows", (1, 300), (70, 300), F32, "NCHW", "NCHW", 1.0, 0.0),
    ("long-rows", (3, 1), (3, 5003), F32, "NCHW", "NCHW", 1.0, 0.0),
    ("parts-of-a-row", (1,), (33001,), F32, "NCHW", "NCHW", 1.0, 0.0),
    ("parts-of-columns", (1, 40), (331, 40), F32, "NCHW", "NCHW", -2.0, 0.5),
    ("parts-of-planes", (1, 2, 1, 1), (7, 2, 67, 73), F32, "NCHW", "NCHW", 1.0, 0.0),
    ("planes-in-packs", (1, 3, 1, 1), (2, 3, 7, 7), F32, "NCHW", "NCHW", -1.0, 0.5),
    ("nchw-to-nhwc-tiles", (2, 37, 5, 11), (2, 37, 5, 11), F32, "NCHW", "NHWC", 1.0, 0.0),
    ("nhwc-to-nchw-tiles", (2, 40, 8, 8), (2, 40, 8, 8), F64, "NHWC", "NCHW", 2.0, -0.5),
    ("nchw-to-nhwc-pairs", (2, 66, 9, 10), (2, 66, 9, 10), F16, "NCHW", "NHWC", 1.0, 0.0),
    ("nhwc-to-nchw-pairs", (2, 70, 9, 8), (2, 70, 9, 8), BF16, "NHWC", "NCHW", 2.0, -0.5),
    ("parts-of-columns-fp16", (1, 40), (331, 40), F16, "NCHW", "NCHW", 1.0, 0.0),
    ("parts-of-a-row-fp16", (1,), (33001,), F16, "NCHW", "NCHW", 1.0, 0.5),
    ("whole-fp16", (1, 5, 1), (3, 5, 20), F16, "NCHW", "gaps", 1.0, 0.0),
    ("parts-of-columns-bf16", (1, 40), (331, 40), BF16, "NCHW", "NCHW", 1.0, 1.0),
    ("parts-of-a-row-bf16", (1,), (33001,), BF16, "NCHW", "NCHW", 1.0, 0.0),
    ("whole-bf16", (1, 5, 1), (3, 5, 20), BF16, "NCHW", "NCHW", 1.0, 0.0),
    ("bias-fp16", (1, 5, 1, 1), (2, 5, 3, 4), F16, "NCHW", "NHWC", 1.0, 1.0),
    ("bias-bf16", (1, 5, 1, 1), (2, 5, 3, 4), BF16, "NCHW", "NHWC", 1.0, 1.0),
    ("empty", (1, 3), (0, 3), F32, "NCHW", "NCHW", 1.0, 0.0),
)

# name, small shape, large shape, dtype and layout of the large one, alpha, beta
WIDE_SUMS = (
    ("whole-fp16", (1, 5, 1), (3, 5, 20), F16, "gaps", 1.0, 0.0),
    ("rows-bf16", (1, 300), (70, 300), BF16, "NCHW", -1.0, 0.5),
    ("parts-of-columns-fp16", (1, 40), (331, 40), F16, "NCHW", 1.0, 0.0),
    ("parts-of-a-row-bf16", (1,), (33001,), BF16, "NCHW", 1.0, 0.5),
    ("bias-fp16", (1, 5, 1, 1), (2, 5, 3, 4), F16, "NHWC", 1.0, 0.0),
)

# name, M, N, K, dtype, a transposed, b transposed, alpha, beta
PRODUCTS = (
    ("small", 3, 4, 5, F32, False, False, 1.0, 0.0),
    ("a-transposed", 7, 9, 33, F32, True, False, 1.0, 0.0),
    ("b-transposed", 17, 10, 64, F32, False, True, 1.0, 0.0),
    ("both-transposed-blend", 13, 11, 12, F32, True, True, -1.0, 0.5),
    ("vector", 1, 10, 129, F32, False, True, 1.0, 0.0),
    ("column", 65, 1, 31, F32, False, False, 1.0, 1.0),
    ("tiles", 130, 70, 20, F32, False, False, 1.0, 0.0),
    ("fp64", 20, 19, 40, F64, False, True, 1.0, 0.0),
    ("no-rows", 0, 4, 5, F32, False, False, 1.0, 0.0),
    ("nothing-to-sum", 3, 4, 0, F32, False, False, 1.0, 0.0),
    ("long-sum", 2, 3, 4001, F32, False, True, 1.0, 0.0),
    ("long-sum-fp64", 2, 3, 4001, F64, False, True, 1.0, 0.0),
    ("fp16-blend", 33, 20, 70, F16, True, False, -0.5, 2.0),
    ("long-sum-fp16", 2, 3, 4001, F16, False, True, 1.0, 0.0),
    ("bf16", 20, 33, 70, BF16, False, True, 1.0, 0.0),
    ("long-sum-bf16-blend", 3, 2, 4001, BF16, True, False, 1.0, 1.0),
)


def _matrix(rows: int, columns: int, dtype: DType, transposed: bool) -> TensorDescriptor:
    if transposed:
        return TensorDescriptor.packed((columns, rows), dtype).transposed()
    return TensorDescriptor.packed((rows, columns), dtype)


def _cases() -> tuple[Case, ...]:
    cases = []
    for name, small, large, dtype, small_layout, large_layout, alpha, beta in PAIRS:
        a, c = describe(small, dtype, small_layout), describe(large, dtype, large_layout)
        cases.append(Case(f"add-{name}", AddProblem(a, c), alpha, beta))
        if small != large or "tiles" not in name:  # those are for transforms between layouts
            cases.append(Case(f"sum-{name}", SumProblem(c, a), alpha, beta))
    for name, small, large, dtype, layout, alpha, beta in WIDE_SUMS:
        wide = SumProblem(describe(large, dtype, layout), describe(small, F32, "NCHW"))
        cases.append(Case(f"sum-wide-{name}", wide, alpha, beta))
    stretched = TensorDescriptor(F32, (4, 6), (0, 1))
    cases.append(Case("add-zero-stride", AddProblem(stretched, TensorDescriptor.packed((4, 6), F32))))
    for name, m, n, k, dtype, ta, tb, alpha, beta in PRODUCTS:
        problem = MatmulProblem(
            _matrix(m, k, dtype, ta), _matrix(k, n, dtype, tb), TensorDescriptor.packed((m, n), dtype)
        )
        cases.append(Case(f"matmul-{name}", problem, alpha, beta))
    return tuple(cases)


CASES = _cases()
