"""Matrix products as convolutions by filters of one tap: every way by itself, blocks that take several tiles, operands anywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dnncore import DType, Handle, ops
from dnncore.cuda import algorithms
from dnncore.cuda.one_tap import GEMM_3XTF32, GEMM_WGMMA, OneTapMatmul, Way
from dnncore.figures import H200
from dnncore.problems import MatmulProblem
from tests.cases import Case
from tests.cases.matmul import matrix
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

pytestmark = pytest.mark.cuda  # wgmma is an instruction of GPUs

WAYS = [(algorithm, way) for algorithm in (GEMM_WGMMA, GEMM_3XTF32) for way in algorithm.ways]
NAMES = {
    way: f"{algorithm.name}-{form}{'-of-c-transposed' if way.is_transposed else ''}"
    for algorithm, forms in (
        (GEMM_WGMMA, ("forward", "backward-data", "backward-filter")),
        (GEMM_3XTF32, ("planes", "backward-filter-of-planes", "backward-filter")),
    )
    for way, form in zip(algorithm.ways, [form for form in forms for _ in range(2)], strict=True)
}


def _suiting(way: Way, dtype: DType, m: int, n: int, k: int) -> MatmulProblem:
    """A product whose operands lie as the way needs it, and where it needs nothing, nowhere."""
    lie = ("nowhere", "rows", "columns")
    found = [
        problem
        for of_a in lie
        for of_b in lie
        for of_c in lie
        if not way.missing(
            problem := MatmulProblem(matrix(m, k, dtype, of_a), matrix(k, n, dtype, of_b), matrix(m, n, dtype, of_c))
        )
    ]
    return found[0]


def _handle(monkeypatch: pytest.MonkeyPatch, algorithm: OneTapMatmul, ways: tuple[Way, ...], blocks: int) -> Handle:
    """Of a device as if it had so many multiprocessors, whose products are computed in these ways alone."""
    monkeypatch.setattr("dnncore.cuda.figures.of_device", lambda *_: replace(H200, multiprocessors=blocks))
    monkeypatch.setitem(algorithms._ALGORITHMS, MatmulProblem, (replace(algorithm, ways=ways),))
    return Handle(CUDA_DEVICES[0])


@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize(("algorithm", "way"), WAYS, ids=[NAMES[way] for _, way in WAYS])
def test_blocks_share_out_the_tiles_of_every_way(
    algorithm: OneTapMatmul, way: Way, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = algorithm.dtypes[blocks % len(algorithm.dtypes)]
    with _handle(monkeypatch, algorithm, (way,), blocks) as few:
        case = Case(f"{NAMES[way]}-{blocks}", _suiting(way, dtype, 264, 200, 139), alpha=-0.5, beta=float(blocks == 5))
        check(few, case, algorithm.name)


@pytest.mark.parametrize(("algorithm", "way"), WAYS, ids=[NAMES[way] for _, way in WAYS])
def test_operands_that_start_anywhere_are_computed_elsewhere(
    algorithm: OneTapMatmul, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy engine would fault."""
    with _handle(monkeypatch, algorithm, (way,), 3) as few:
        case = Case(NAMES[way], _suiting(way, algorithm.dtypes[0], 40, 72, 70), beta=2.0)
        check(few, case, algorithm.name, guard=GUARD + 1)


def test_3xtf32_of_sums_of_one_sign_is_as_precise_as_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """1024 positive products: each product of tf32 alone is wrong by up to 2^-10, and sums that are cut off by 1024 * 2^-24."""
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(0.5, 1, shape).astype(np.float32) for shape in ((64, 1024), (1024, 32)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for way in GEMM_3XTF32.ways:
        with monkeypatch.context() as patch, _handle(patch, GEMM_3XTF32, (way,), 132) as own:
            problem = _suiting(way, DType.FLOAT32, 64, 32, 1024)
            ta, tb, tc = (own.tensor(descriptor) for descriptor in (problem.a, problem.b, problem.c))
            ta.assign(a)
            tb.assign(b)
            ops.matmul(own, 1.0, ta, tb, 0.0, tc)
            assert np.max(np.abs(tc.numpy() - exact) / exact) < 2.0**-20, NAMES[way]
