"""The largest elements of rows whose elements are equal, infinite or no numbers, by every algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import Handle, TensorDescriptor
from dnncore.cuda.top_k import Candidates
from dnncore.dtypes import DType
from dnncore.figures import H200
from dnncore.plan import Preference, rank
from dnncore.problems import TopKProblem

NAN, INF = np.nan, np.inf


def rows_of(length: int, dtype: str) -> np.ndarray:
    """Of each kind one."""
    rng = np.random.default_rng(7)
    return np.array(
        [
            np.full(length, 1.5),
            np.full(length, NAN),
            np.full(length, -INF),
            rng.choice([0.0, -0.0], length),
            rng.choice([NAN, INF, -INF, 3.0, -3.0], length),
            rng.choice([-1e-7, 1e-7, -6e4, 6e4], length),
            np.where(np.arange(length) == length - 1, NAN, -INF),
            -np.arange(length),
            np.arange(length) % 300,
            rng.standard_normal(length),
        ]
    ).astype(DType.of(dtype).numpy)


def expected(rows: np.ndarray, count: int) -> np.ndarray:
    """Indices: NaN first, then the largest; of equals the first."""
    wide = rows.astype(np.float64)
    return np.array(
        [np.lexsort((np.arange(row.size), -np.where(np.isnan(row), 0, row), ~np.isnan(row)))[:count] for row in wide]
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("length", "count"), [(5, 5), (33, 3), (1000, 5), (1024, 32), (1025, 1), (8192, 7), (9000, 4)])
def test_every_algorithm_finds_them_in_the_same_order(handle: Handle, length: int, count: int, dtype: str) -> None:
    rows = rows_of(length, dtype)
    few = (rows.shape[0], count)
    x, values, indices = (
        TensorDescriptor.packed(shape, kind) for shape, kind in ((rows.shape, dtype), (few, dtype), (few, "int32"))
    )
    problem = TopKProblem(x, values, indices, 1)
    places = expected(rows, count)
    for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST):
        if algorithm.status is not None:
            continue
        with handle.upload(rows) as tx, handle.tensor(values) as found, handle.tensor(indices) as where:
            handle.run(handle.plan(problem, algorithm=algorithm.name), 1.0, [tx], 0.0, [found, where])
            assert np.array_equal(where.numpy(), places), algorithm.name
            taken = np.take_along_axis(rows, places, 1).astype(np.float64)
            assert np.array_equal(found.numpy().astype(np.float64), taken, equal_nan=True), algorithm.name


@pytest.mark.parametrize(
    ("name", "shape", "count", "dtype", "reason"),
    [
        ("warp_per_row", (2, 1025), 5, "float32", "rows have 1025 elements; a warp keeps 1024"),
        ("block_of_candidates", (2, 5000), 33, "float32", "33 elements are wanted; at most 32"),
        ("block_of_candidates", (2, 5000), 3, "float64", "x is float64"),
    ],
)
def test_candidates_are_refused_with_the_reason(
    name: str, shape: tuple[int, int], count: int, dtype: str, reason: str
) -> None:
    few = (shape[0], count)
    problem = TopKProblem(
        TensorDescriptor.packed(shape, dtype),
        TensorDescriptor.packed(few, dtype),
        TensorDescriptor.packed(few, "int32"),
        1,
    )
    found = Candidates(name).offer(problem, H200)
    assert isinstance(found, str)
    assert reason in found
