"""Convolution with scale, bias, residual and activation, one after the other."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import cast

import numpy as np

from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem
from dnncore.reference import blocked_convolution, convolution, depthwise_convolution
from dnncore.reference.activation import activate
from dnncore.reference.launch import Array, Compute, Parts, ReferenceAlgorithm

__all__ = ["ALGORITHMS", "DENSE"]


def _finished(problem: FusedConvolutionProblem, y: Array, operands: dict[str, Array]) -> Array:
    """What follows a convolution, or a part of one, which is overwritten."""
    if problem.alpha1 != 1:
        y *= problem.alpha1
    if "scale" in operands:
        y *= operands["scale"]
    if "bias" in operands:
        y += operands["bias"]
    if "z" in operands and problem.alpha2:
        y += operands["z"] if problem.alpha2 == 1 else problem.alpha2 * operands["z"]
    return y if problem.activation is None else activate(problem.activation, y)


def _exact(problem: FusedConvolutionProblem) -> ReferenceAlgorithm:
    """What computes the convolution alone, in float64."""
    return next(one for one in convolution.EXACT[Direction.FORWARD] if one.unsupported(problem.plain) is None)


def _composed(problem: FusedConvolutionProblem, x: Array, w: Array, *others: Array) -> Array:
    y = _exact(problem).compute(problem.plain, x, w)
    assert isinstance(y, np.ndarray)
    return _finished(problem, y, dict(zip(problem.input_names[2:], others, strict=True)))


def _composed_temporaries(problem: FusedConvolutionProblem) -> int:
    return _exact(problem).temporaries(problem.plain)


@lru_cache
def _plain(problem: FusedConvolutionProblem) -> ConvolutionProblem:
    """The convolution alone: made once, not at each launch."""
    return problem.plain


def _in_blocks(forward: Compute, problem: FusedConvolutionProblem, x: Array, w: Array, *others: Array) -> Parts:
    """A block is finished while it is in the cache."""
    operands = dict(zip(problem.input_names[2:], others, strict=True))
    for index, y in cast(Parts, forward(_plain(problem), x, w)):
        assert isinstance(y, np.ndarray)
        channels = (slice(None), index[1])
        here = {name: operand[index if name == "z" else channels] for name, operand in operands.items()}
        yield index, _finished(problem, y, here)


def _fused(plain: ReferenceAlgorithm) -> ReferenceAlgorithm:
    """An algorithm that gives parts of images and channels, with what follows done to each part."""
    return ReferenceAlgorithm(
        plain.name,
        partial(_in_blocks, plain.compute),
        lambda problem: plain.unsupported(problem.plain),
        lambda problem: plain.temporaries(problem.plain),
        plain.maths,
    )


DENSE = (
    _fused(blocked_convolution.ALGORITHMS[Direction.FORWARD]),
    ReferenceAlgorithm("composed", _composed, temporaries=_composed_temporaries),
)
"""Of one group, and of more."""

ALGORITHMS = (_fused(depthwise_convolution.FORWARD), *DENSE)
