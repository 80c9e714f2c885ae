"""<dy, conv(x, w)> = <dx, x> = <dw, w>: the three directions of a convolution, and of pooling, agree with each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dnncore import Handle, Preference, ops
from dnncore.backend import Offer
from dnncore.plan import rank
from dnncore.problems import ConvolutionProblem, Direction, PoolingForwardProblem
from dnncore.testing import tolerance
from tests.cases import CASES, Case
from tests.conftest import EMULATOR
from tests.ops.launches import launches_of

MOST_MACS = 20_000 if EMULATOR else 10**9
"""Multiply-adds of a convolution whose three directions every algorithm computes."""

MOST_THREADS = 8_000
"""Of an algorithm's launches on the emulator."""

FORWARD = [
    case
    for case in CASES
    if isinstance(case.problem, ConvolutionProblem)
    and case.problem.macs <= MOST_MACS
    and not (EMULATOR and case.written_for)
    and case.problem.direction is Direction.FORWARD
    and case.problem.x.ndim == 4
    and case.problem.y.dtype.is_floating
    and case.problem.x.dtype.is_floating
    and case.problem.x.size
]
AVERAGES = [
    case
    for case in CASES
    if isinstance(case.problem, PoolingForwardProblem)
    and case.problem.pooling.mode.value.startswith("average")
    and case.problem.x.size
    and case.problem.x.dtype.is_floating
]


def _inner(a: np.ndarray, b: np.ndarray) -> float:
    return float((a.astype(np.float64) * b.astype(np.float64)).sum())


def _affordable(handle: Handle, offer: Offer) -> bool:
    """What the emulator launches here it has launched in the cases: of large launches those are enough."""
    return not EMULATOR or handle.info.name == "cpu" or launches_of(offer).threads <= MOST_THREADS


@pytest.mark.parametrize("case", FORWARD, ids=lambda case: case.name)
def test_the_three_directions_of_a_convolution_are_adjoint(handle: Handle, case: Case) -> None:
    problem = case.problem
    assert isinstance(problem, ConvolutionProblem)
    rng = np.random.default_rng(7)
    dtype = problem.x.dtype
    # Positive, so that nothing cancels and the allowance is a small part of the product.
    x, w, dy = (rng.uniform(0.5, 1.5, d.shape).astype(dtype.numpy) for d in (problem.x, problem.w, problem.y))
    arrays = {Direction.FORWARD: (x, w, dy), Direction.BACKWARD_DATA: (w, dy, x), Direction.BACKWARD_FILTER: (x, dy, w)}
    products: dict[str, float] = {}
    factor = 1.0
    maths: set[str] = set()
    for direction, (first, second, other) in arrays.items():
        turned = replace(problem, direction=direction)
        with (
            handle.tensor(turned.inputs[0]) as a,
            handle.tensor(turned.inputs[1]) as b,
            handle.tensor(turned.outputs[0]) as c,
        ):
            a.assign(first)
            b.assign(second)
            for algorithm in rank(turned, handle.device, Preference.PREFER_FASTEST):
                if algorithm.offer is not None and algorithm.status is None and _affordable(handle, algorithm.offer):
                    handle.run(handle.plan(turned, algorithm=algorithm.name), 1.0, (a, b), 0.0, (c,))
                    products[f"{direction.value} by {algorithm.name}"] = _inner(c.numpy(), other)
                    factor = max(factor, algorithm.offer.error_factor or 1.0)
                    maths.add(algorithm.offer.math)
    largest, smallest = max(products.values()), min(products.values())
    terms = max(math.prod(problem.w.shape[1:]), problem.w.shape[0] * math.prod(problem.w.shape[2:]), problem.y.size)
    allowed = factor * max(tolerance(dtype, terms, each) for each in maths) * largest
    assert largest - smallest <= allowed, products
    assert allowed <= 0.1 * largest


@pytest.mark.parametrize("case", AVERAGES, ids=lambda case: case.name)
def test_average_pooling_backward_is_the_adjoint_of_forward(handle: Handle, case: Case) -> None:
    problem = case.problem
    assert isinstance(problem, PoolingForwardProblem)
    rng = np.random.default_rng(8)
    dtype = problem.x.dtype
    x, dy = (rng.uniform(0.5, 1.5, d.shape).astype(dtype.numpy) for d in (problem.x, problem.y))
    with (
        handle.upload(x) as tx,
        handle.upload(dy) as tdy,
        handle.tensor(x.shape, dtype) as tdx,
        handle.tensor(dy.shape, dtype) as ty,
    ):
        ops.pooling_forward(handle, 1.0, tx, problem.pooling, 0.0, ty)
        ops.pooling_backward(handle, 1.0, ty, tdy, tx, problem.pooling, 0.0, tdx)
        by_y, by_x = _inner(dy, ty.numpy()), _inner(tdx.numpy(), x)
    allowed = tolerance(dtype, math.prod(problem.pooling.window)) * by_y
    assert abs(by_y - by_x) <= allowed <= 0.1 * by_y
