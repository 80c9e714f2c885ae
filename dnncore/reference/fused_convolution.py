"""Convolution with scale, bias, residual and activation, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import cast

import numpy as np

from dnncore.figures import Maths
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem
from dnncore.reference import blocked_convolution, convolution, depthwise_convolution
from dnncore.reference.activation import activate
from dnncore.reference.launch import Array, Compute, Parts, ReferenceAlgorithm

__all__ = ["ALGORITHMS", "DENSE", "able", "whole"]


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


def able(maths: Maths, problem: FusedConvolutionProblem) -> ReferenceAlgorithm | None:
    """The first algorithm of these maths that supports a problem; in float32 there is none for empty tensors."""
    return next((one for one in ALGORITHMS if one.maths is maths and one.unsupported(problem) is None), None)


def whole(maths: Maths, problem: FusedConvolutionProblem, *arrays: Array) -> Array:
    """Its result, not rounded: a step of a larger operation."""
    algorithm = able(maths, problem)
    assert algorithm is not None, "what is composed of it says so"
    found = algorithm.compute(problem, *arrays)
    if not isinstance(found, Iterator):
        assert isinstance(found, np.ndarray)
        return found
    batch, channels, *extents = problem.y.shape
    # Channels-last, as the layers' results lie: in which order a product is summed depends on how its operands lie.
    y = np.moveaxis(np.empty((batch, *extents, channels), arrays[0].dtype), -1, 1)
    for index, value in found:
        assert isinstance(value, np.ndarray)
        y[index] = value
    return y
