"""Convolutions whose results are pooled: one and then the other."""

from __future__ import annotations

from dnncore.problems import PooledConvolutionProblem
from tests.ops.oracle.answer import Tensor, Terms, answers

__all__: list[str] = []


@answers.register
def _(problem: PooledConvolutionProblem, *inputs: Tensor) -> Terms:
    """A maximum is off by no more than the one of its four that is off most."""
    found = answers(problem.fused, *inputs)
    assert isinstance(found, tuple)
    exact, magnitude, length = found
    value, largest = (answers(problem.pooling, each) for each in (exact, magnitude))
    assert isinstance(value, tuple)
    assert isinstance(largest, tuple)
    return value[0], largest[0], length
