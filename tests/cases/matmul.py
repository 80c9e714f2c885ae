"""Matrix products as convolutions by filters of one tap: each of the ways in which the copy engine takes the operands.

Rows and columns lie apart by what it permits and no more than their elements, tiles and steps are not filled, and what it does not
touch lies anywhere.
"""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import MatmulProblem
from tests.cases.case import Case

__all__ = ["CASES", "matrix"]

F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
_ALIGNED_BYTES = 16

# name, dtype, M, N, K, where neighbours are in a, b and c: along rows, along columns, or nowhere, alpha, beta
PRODUCTS = (
    ("forward", F16, 37, 72, 100, "rows", "columns", "rows", 1.0, 0.0),
    ("forward-blend", BF16, 201, 136, 65, "rows", "columns", "rows", -0.5, 2.0),
    ("forward-one-row", F16, 1, 136, 520, "rows", "columns", "rows", 1.0, 1.0),
    ("forward-transposed", BF16, 72, 37, 100, "rows", "columns", "columns", 1.0, -1.0),
    ("backward-data", F16, 37, 72, 100, "rows", "rows", "rows", 0.5, -1.0),
    ("backward-data-bf16", BF16, 1, 200, 37, "rows", "rows", "rows", 1.0, 0.0),
    ("backward-data-transposed", F16, 136, 5, 75, "columns", "columns", "columns", 1.0, 0.5),
    ("backward-filter", F16, 70, 45, 101, "columns", "rows", "nowhere", 1.0, 0.0),
    ("backward-filter-blend", BF16, 131, 200, 17, "columns", "rows", "rows", -0.5, 2.0),
    ("planes", F32, 70, 45, 33, "nowhere", "rows", "rows", 1.0, 0.0),
    ("planes-transposed", F32, 150, 37, 70, "columns", "nowhere", "columns", -0.5, 2.0),
    ("backward-filter-of-planes", F32, 70, 45, 101, "rows", "columns", "nowhere", 1.0, 0.0),
    ("backward-filter-of-planes-blend", F32, 65, 150, 17, "rows", "columns", "rows", 2.0, -1.0),
    ("backward-filter-fp32", F32, 70, 45, 101, "columns", "rows", "nowhere", 0.5, 1.0),
)


def matrix(rows: int, columns: int, dtype: DType, neighbours: str) -> TensorDescriptor:
    """A matrix whose rows or columns, whichever have neighbours, begin 16 to 30 bytes behind each other's ends; or nowhere."""
    if neighbours == "nowhere":
        return TensorDescriptor(dtype, (rows, columns), (2 * columns + 3, 2))
    if neighbours == "columns":
        return matrix(columns, rows, dtype, "rows").transposed()
    aligned = _ALIGNED_BYTES // dtype.itemsize
    return TensorDescriptor(dtype, (rows, columns), (-(-columns // aligned) * aligned + aligned, 1))


def _cases() -> tuple[Case, ...]:
    cases = []
    for name, dtype, m, n, k, of_a, of_b, of_c, alpha, beta in PRODUCTS:
        problem = MatmulProblem(matrix(m, k, dtype, of_a), matrix(k, n, dtype, of_b), matrix(m, n, dtype, of_c))
        algorithm = "gemm_3xtf32" if dtype is F32 else "gemm_wgmma"
        cases.append(Case(f"matmul-one-tap-{name}", problem, alpha, beta, written_for=(algorithm,)))
    return tuple(cases)


CASES = _cases()
