"""Runs one case with one algorithm on poisoned, guarded memory and judges the result."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dnncore import Handle, MathType, Tensor, TensorDescriptor
from dnncore.backend import TICKET_BYTES
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem
from dnncore.problems.optimizer import num_blended
from dnncore.testing import assert_close
from tests.cases import Case
from tests.ops.oracle import Answer, make_inputs, solve
from tests.ops.oracle.convolution import plane_magnitudes
from tests.ops.oracle.fused_convolution import fused_plane_magnitudes

__all__ = ["GUARD", "check"]

GUARD = 48  # elements before and behind every tensor; keeps it aligned to 16 bytes


def _poison(count: int, dtype: np.dtype) -> np.ndarray:
    if np.issubdtype(dtype, np.integer):
        return np.full(count, {"int8": -77, "uint8": 177}.get(dtype.name, -77_777), dtype)
    return np.full(count, np.nan, dtype)


class Guarded:
    """A tensor in the middle of poisoned memory, `guard` elements from either end; right before it there may be zeros."""

    def __init__(
        self,
        handle: Handle,
        descriptor: TensorDescriptor,
        value: np.ndarray | None,
        guard: int = GUARD,
        zeros: int = 0,
    ) -> None:
        dtype = descriptor.dtype.numpy
        self._guard = guard
        self._host = _poison(descriptor.extent + 2 * guard, dtype)
        self._inside = np.lib.stride_tricks.as_strided(
            self._host[guard : guard + max(descriptor.extent, 1)], descriptor.shape, descriptor.byte_strides
        )
        self._host[guard - zeros : guard] = 0
        if value is not None:
            self._inside[...] = value
        self._block = handle.upload(self._host)
        self.tensor: Tensor = self._block.view(descriptor, guard)

    def read(self) -> np.ndarray:
        return self.tensor.numpy()

    def assert_surroundings_untouched(self, what: str) -> None:
        after = self._block.numpy()
        # What lies inside may have changed; lay the new values over the old ones and nothing else may differ.
        self._inside[...] = self.tensor.numpy()
        same = (after == self._host) | ((after != after) & (self._host != self._host))
        assert same.all(), f"{what}: wrote outside its tensor at element {int(np.argmin(same)) - self._guard}"

    def close(self) -> None:
        self._block.close()


def _workspace(handle: Handle, nbytes: int) -> Guarded:
    """A workspace of just this size behind its tickets; its poison, read as float32 or float64, is NaN."""
    words, tickets = TensorDescriptor.packed((-(-nbytes // 4),), "int32"), TICKET_BYTES // 4
    # 64 words are 256 bytes, the alignment that launches are promised.
    return Guarded(handle, words, None, guard=64 + tickets, zeros=tickets)


def _magnitude(handle: Handle, case: Case, algorithm: str, answer: Answer, inputs: list[np.ndarray]) -> np.ndarray:
    """What the error is relative to: an algorithm that transforms tiles spreads its rounding errors over them.

    It says so with an `error_factor`, and is judged by that many times the largest sum that the planes it transforms could give.
    """
    factor = handle.plan(case.problem, algorithm=algorithm).offer.error_factor
    if factor is None:
        return answer.magnitude
    if isinstance(case.problem, FusedConvolutionProblem):
        planes, beside = fused_plane_magnitudes(case.problem, *inputs), answer.magnitude
    else:
        assert isinstance(case.problem, ConvolutionProblem)
        planes, beside = plane_magnitudes(case.problem, *inputs), np.zeros(())
    return beside + factor * np.broadcast_to(
        planes.reshape(*planes.shape, *(1,) * (answer.magnitude.ndim - 2)), answer.magnitude.shape
    )


Posed = tuple[list[np.ndarray], tuple[Answer, ...], list[np.ndarray | None]]
"""A case's inputs, the answers to them, and what its outputs hold before."""


@lru_cache(maxsize=1)  # a case is tried by one algorithm after another
def _posed(case: Case) -> Posed:
    problem = case.problem
    rng = np.random.default_rng(list(case.name.encode()))
    values = make_inputs(problem, rng)
    answers, blended = solve(problem, values), num_blended(problem)
    before: list[np.ndarray | None] = [None] * len(problem.outputs)
    for i, output in enumerate(problem.outputs[:blended] if case.beta else ()):
        spread = 1 if output.dtype.is_floating else 100  # of integers, fractions would all be 0
        before[i] = rng.uniform(-spread, spread, output.shape).astype(output.dtype.numpy)
    return values, answers, before


def check(handle: Handle, case: Case, algorithm: str, guard: int = GUARD) -> None:
    problem, alpha, beta = case.problem, case.alpha, case.beta
    values, answers, before = _posed(case)
    blended = num_blended(problem)

    plan = handle.plan(problem, algorithm=algorithm)
    inputs = [Guarded(handle, d, v, guard) for d, v in zip(problem.inputs, values, strict=True)]
    targets = [Guarded(handle, d, old, guard) for d, old in zip(problem.outputs, before, strict=True)]
    workspace = _workspace(handle, plan.workspace_bytes)
    try:
        if plan.workspace_bytes:
            addresses = [guarded.tensor.address for guarded in (*inputs, *targets, workspace)]
            plan.launch(handle.stream, alpha, beta, addresses)
        else:
            handle.run(plan, alpha, [g.tensor for g in inputs], beta, [g.tensor for g in targets])
        results = [target.read() for target in targets]
        names = [*problem.input_names, *(f"output {i}" for i in range(len(targets))), "workspace"]
        for guarded, name in zip([*inputs, *targets, workspace], names, strict=True):
            guarded.assert_surroundings_untouched(f"{case.name} by {algorithm}: {name}")
        for guarded, value, name in zip(inputs, values, problem.input_names, strict=True):
            assert np.array_equal(guarded.read(), value), f"{case.name} by {algorithm}: changed its input {name}"
    finally:
        for guarded in (*inputs, *targets, workspace):
            guarded.close()

    expected = list(answers)
    for i, answer in enumerate(answers[:blended]):
        given = before[i]
        old = np.zeros(problem.outputs[i].shape) if given is None else given.astype(np.float64)
        magnitude = abs(alpha) * _magnitude(handle, case, algorithm, answer, values) + abs(beta) * np.abs(old)
        expected[i] = Answer(alpha * answer.value + beta * old, magnitude, answer.length)
    if plan.math == "tf32":  # which widens what is allowed
        assert isinstance(problem, ConvolutionProblem | FusedConvolutionProblem)
        assert problem.convolution.math is MathType.TF32, f"{case.name} by {algorithm} rounds what is not to be rounded"
    for i, (descriptor, result, answer) in enumerate(zip(problem.outputs, results, expected, strict=True)):
        what = f"{case.name} by {algorithm}, output {i}"
        assert_close(result, answer.value, answer.magnitude, descriptor.dtype, answer.length, what, plan.math)
