"""<dy, conv(x, w)> = <dx, x> = <dw, w>: the three directions of a convolution, and of pooling, agree with each other."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import Handle, ops
from dnncore.problems import ConvolutionProblem, Direction, PoolingForwardProblem
from dnncore.testing import tolerance
from tests.cases import CASES, Case

FORWARD = [
    case
    for case in CASES
    if isinstance(case.problem, ConvolutionProblem)
    and case.problem.direction is Direction.FORWARD
    and case.problem.x.ndim == 4
    and case.problem.x.size
]
AVERAGES = [
    case
    for case in CASES
    if isinstance(case.problem, PoolingForwardProblem)
    and case.problem.pooling.mode.value.startswith("average")
    and case.problem.x.size
]


def _inner(a: np.ndarray, b: np.ndarray) -> float:
    return float((a.astype(np.float64) * b.astype(np.float64)).sum())


@pytest.mark.parametrize("case", FORWARD, ids=lambda case: case.name)
def test_the_three_directions_of_a_convolution_are_adjoint(handle: Handle, case: Case) -> None:
    problem = case.problem
    assert isinstance(problem, ConvolutionProblem)
    rng = np.random.default_rng(7)
    dtype = problem.x.dtype
    x, w, dy = (rng.standard_normal(d.shape).astype(dtype.numpy) for d in (problem.x, problem.w, problem.y))
    conv = problem.convolution
    with (
        handle.upload(x) as tx,
        handle.upload(w) as tw,
        handle.upload(dy) as tdy,
        handle.tensor(dy.shape, dtype) as ty,
        handle.tensor(x.shape, dtype) as tdx,
        handle.tensor(w.shape, dtype) as tdw,
    ):
        ops.convolution_forward(handle, 1.0, tx, tw, conv, 0.0, ty)
        ops.convolution_backward_data(handle, 1.0, tw, tdy, conv, 0.0, tdx)
        ops.convolution_backward_filter(handle, 1.0, tx, tdy, conv, 0.0, tdw)
        by_y, by_x, by_w = _inner(dy, ty.numpy()), _inner(tdx.numpy(), x), _inner(tdw.numpy(), w)
    scale = float(np.abs(x).sum() * np.abs(w).max() * np.abs(dy).max() * w.shape[0])
    allowed = tolerance(dtype, problem.macs) * scale
    assert abs(by_y - by_x) <= allowed
    assert abs(by_y - by_w) <= allowed


@pytest.mark.parametrize("case", AVERAGES, ids=lambda case: case.name)
def test_average_pooling_backward_is_the_adjoint_of_forward(handle: Handle, case: Case) -> None:
    problem = case.problem
    assert isinstance(problem, PoolingForwardProblem)
    rng = np.random.default_rng(8)
    dtype = problem.x.dtype
    x, dy = (rng.standard_normal(d.shape).astype(dtype.numpy) for d in (problem.x, problem.y))
    with (
        handle.upload(x) as tx,
        handle.upload(dy) as tdy,
        handle.tensor(x.shape, dtype) as tdx,
        handle.tensor(dy.shape, dtype) as ty,
    ):
        ops.pooling_forward(handle, 1.0, tx, problem.pooling, 0.0, ty)
        ops.pooling_backward(handle, 1.0, ty, tdy, tx, problem.pooling, 0.0, tdx)
        by_y, by_x = _inner(dy, ty.numpy()), _inner(tdx.numpy(), x)
    assert abs(by_y - by_x) <= tolerance(dtype, x.size) * float(np.abs(x).sum() * np.abs(dy).max())
