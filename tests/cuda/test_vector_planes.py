"""Planes whose strips are whole vectors, of x (`pooling_vector_planes.cuh`) and of dx (`pooling_rolling_gradients.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from dnncore import DType, Handle
from dnncore.backend import Offer
from dnncore.cuda.calls import Place, WhereAligned
from dnncore.cuda.pooling import rolling_gradients, rolling_planes
from dnncore.cuda.pooling.rolling_planes import RollingPlanes
from dnncore.descriptors import PoolingMode
from dnncore.figures import H200
from dnncore.problems import PoolingForwardProblem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.cuda.test_rolling_pooling import INF, NAN, STEPS, gradient_of, problem_of
from tests.ops.harness import GUARD, check

WINDOWS = [(2, 0, False), (3, 1, False), (3, 0, True)]
"""Extent, padding, and whether the last window may end behind the plane."""

KERNELS = {
    f"pooling_{kind}_{dtype}_{form}"
    for dtype in ("float16", "bfloat16", "float")
    for window, padding, _ in WINDOWS
    for kind, form in (
        *(
            (f"forward_vector_planes_{mode}", f"{window}x{window}_padding_{padding}")
            for mode in ("max", "average", "indices")
        ),
        *((f"backward_rolling_{mode}", f"plane_vectors_{window}x{window}_stride_2") for mode in ("average", "indices")),
    )
}
"""What the cases here run."""


def vector_problem(
    window: int,
    padding: int,
    ceil_mode: bool,
    *,
    rows: int = 16,
    columns: int = 16,
    dtype: str = "float16",
    mode: PoolingMode | str = "max",
    keeps_indices: bool = False,
    propagate_nan: bool = True,
) -> PoolingForwardProblem:
    shape = (2, 3, rows, columns)
    problem = problem_of(
        shape,
        2,
        window=window,
        padding=padding,
        ceil_mode=ceil_mode,
        layout="NCHW",
        dtype=dtype,
        mode=mode,
        propagate_nan=propagate_nan,
    )
    return replace(problem, indices=replace(problem.y, dtype=DType.INT32)) if keeps_indices else problem


@pytest.fixture
def walker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """A handle whose walks are STEPS rows long."""
    monkeypatch.setattr(rolling_planes, "resident_threads", lambda *_: 0)
    monkeypatch.setattr(rolling_planes, "_MOST_ROWS", STEPS)
    monkeypatch.setattr(rolling_gradients, "resident_threads", lambda *_: 0)
    monkeypatch.setattr(rolling_gradients, "_MOST_STEPS", STEPS)
    with Handle(CUDA_DEVICES[0]) as opened:
        yield opened


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("mode", "keeps_indices"),
    [(mode, False) for mode in PoolingMode] + [(PoolingMode.MAX, True)],
    ids=lambda value: value.value if isinstance(value, PoolingMode) else "indices" if value else "",
)
@pytest.mark.parametrize(("window", "padding", "ceil_mode"), WINDOWS)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_strips_of_vectors_agree_with_the_float64_answer(
    walker: Handle,
    window: int,
    padding: int,
    ceil_mode: bool,
    mode: PoolingMode,
    keeps_indices: bool,
    dtype: str,
    beta: float,
) -> None:
    problem = vector_problem(window, padding, ceil_mode, mode=mode, dtype=dtype, keeps_indices=keeps_indices)
    assert rolling_planes._in_vectors(problem)
    assert rolling_planes._walks(problem, walker.device.figures).walks > 1
    check(walker, Case("rolling_planes", problem, alpha=1.5 if beta else 1.0, beta=beta), "rolling_planes")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("keeps_indices", [False, True])
@pytest.mark.parametrize(("window", "padding", "ceil_mode"), WINDOWS)
def test_the_first_maximum_among_equals_nan_and_infinities(
    walker: Handle, window: int, padding: int, ceil_mode: bool, keeps_indices: bool, propagate: bool, dtype: str
) -> None:
    """As the reference has it."""
    problem = vector_problem(
        window, padding, ceil_mode, dtype=dtype, keeps_indices=keeps_indices, propagate_nan=propagate
    )
    rng = np.random.default_rng(5)
    x = rng.choice([NAN, -NAN, -INF, -INF, INF, -2.0, 0.0, 3.0, 3.0, 4.0, 1.0], problem.x.shape)
    x[:, :, :3] = [[-INF], [NAN], [-INF]]  # rows of what padding is easily taken for
    found = []
    with Handle("cpu") as reference:
        for handle, algorithm in ((walker, "rolling_planes"), (reference, None)):
            plan = handle.plan(problem, algorithm=algorithm)
            tensors = [handle.tensor(each) for each in (problem.x, *problem.outputs)]
            tensors[0].assign(x.astype(problem.x.dtype.numpy))
            handle.run(plan, 1.0, tensors[:1], 0.0, tensors[1:])
            found.append([tensor.numpy().astype(np.float64) for tensor in tensors[1:]])
            for tensor in tensors:
                tensor.close()
    for ours, theirs in zip(*found, strict=True):
        assert np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mode", PoolingMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize(("window", "padding", "ceil_mode"), WINDOWS)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_gradients_by_vectors_agree_with_the_float64_answer(
    walker: Handle, window: int, padding: int, ceil_mode: bool, mode: PoolingMode, dtype: str, beta: float
) -> None:
    """Of maxima from their indices."""
    problem = gradient_of(vector_problem(window, padding, ceil_mode, mode=mode, dtype=dtype))
    assert rolling_gradients._in_vectors(problem)
    walks = rolling_gradients._walks(problem, walker.device.figures, of_planes=True)
    assert walks.walks > 1
    check(walker, Case("rolling", problem, alpha=1.5 if beta else 1.0, beta=beta), "rolling")


@pytest.mark.cuda
def test_a_gradient_that_starts_at_an_odd_element_is_as_good(walker: Handle) -> None:
    check(walker, Case("rolling", gradient_of(vector_problem(3, 1, False)), alpha=1.0), "rolling", GUARD + 1)


@pytest.mark.cuda
def test_a_tensor_that_starts_at_an_odd_element_is_as_good(walker: Handle) -> None:
    check(walker, Case("rolling_planes", vector_problem(3, 1, False), alpha=1.0), "rolling_planes", GUARD + 1)


def test_where_an_address_is_not_aligned_it_is_planar_pooling() -> None:
    problem = vector_problem(3, 1, False, keeps_indices=True)
    offer = RollingPlanes().offer(problem, H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    assert sorted((place.operand, nbytes) for place, nbytes in choice.alignments) == [(0, 16), (1, 8), (2, 16)]
    assert Place(0) in dict(choice.alignments)


@pytest.mark.parametrize(
    ("columns", "window", "padding", "ceil_mode"),
    [(14, 3, 1, False), (16, 3, 0, False), (16, 3, 1, True), (16, 3, 2, False), (16, 2, 1, False)],
)
def test_other_strips_are_read_one_place_at_a_time(columns: int, window: int, padding: int, ceil_mode: bool) -> None:
    problem = vector_problem(window, padding, ceil_mode, columns=columns)
    assert not rolling_planes._in_vectors(problem)
    assert not rolling_gradients._in_vectors(gradient_of(problem))
