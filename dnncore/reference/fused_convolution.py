"""Convolution with scale, bias, residual and activation, one after the other."""

from __future__ import annotations

import numpy as np

from dnncore.problems import Direction, FusedConvolutionProblem
from dnncore.reference import blocked_convolution, convolution
from dnncore.reference.activation import activate
from dnncore.reference.launch import Array, Parts, ReferenceAlgorithm

__all__ = ["ALGORITHMS"]


def _finished(problem: FusedConvolutionProblem, y: Array, operands: dict[str, Array]) -> Array:
    """What follows a convolution, or a part of one."""
    if problem.alpha1 != 1:
        y = problem.alpha1 * y
    if "scale" in operands:
        y = y * operands["scale"]
    if "bias" in operands:
        y = y + operands["bias"]
    if "z" in operands and problem.alpha2:
        y = y + (operands["z"] if problem.alpha2 == 1 else problem.alpha2 * operands["z"])
    return y if problem.activation is None else activate(problem.activation, y)


def _composed(problem: FusedConvolutionProblem, x: Array, w: Array, *others: Array) -> Array:
    plain = next(a for a in convolution.EXACT[Direction.FORWARD] if a.unsupported(problem.plain) is None)
    y = plain.compute(problem.plain, x, w)
    assert isinstance(y, np.ndarray)
    return _finished(problem, y, dict(zip(problem.input_names[2:], others, strict=True)))


def _in_blocks(problem: FusedConvolutionProblem, x: Array, w: Array, *others: Array) -> Parts:
    """A block is finished while it is in the cache."""
    operands = dict(zip(problem.input_names[2:], others, strict=True))
    for index, y in blocked_convolution.forward(problem.plain, x, w):
        here = {name: operand[index] if name == "z" else operand for name, operand in operands.items()}
        yield index, _finished(problem, y, here)


_BLOCKED = blocked_convolution.ALGORITHMS[Direction.FORWARD]

ALGORITHMS = (
    ReferenceAlgorithm(
        _BLOCKED.name,
        _in_blocks,
        lambda problem: _BLOCKED.unsupported(problem.plain),
        lambda problem: _BLOCKED.temporaries(problem.plain),
        _BLOCKED.maths,
    ),
    ReferenceAlgorithm("composed", _composed),
)
