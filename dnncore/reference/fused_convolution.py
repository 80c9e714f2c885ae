"""Convolution with scale, bias, residual and activation, one after the other."""

from __future__ import annotations

from dnncore.problems import Direction, FusedConvolutionProblem
from dnncore.reference import convolution
from dnncore.reference.activation import activate
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["ALGORITHMS"]


def _composed(problem: FusedConvolutionProblem, x: Array, w: Array, *others: Array) -> Array:
    operands = dict(zip(problem.input_names[2:], others, strict=True))
    plain = next(a for a in convolution.algorithms(Direction.FORWARD) if a.unsupported(problem.plain) is None)
    y = plain.compute(problem.plain, x, w)
    assert not isinstance(y, tuple)
    y = problem.alpha1 * y
    if "scale" in operands:
        y = y * operands["scale"]
    if "bias" in operands:
        y = y + operands["bias"]
    if "z" in operands and problem.alpha2:
        y = y + problem.alpha2 * operands["z"]
    return y if problem.activation is None else activate(problem.activation, y)


ALGORITHMS = (ReferenceAlgorithm("composed", _composed),)
