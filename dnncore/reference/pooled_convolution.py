"""A convolution, then max pooling of its result as the convolution would store it."""

from __future__ import annotations

from functools import partial

from dnncore.figures import Maths
from dnncore.problems import PooledConvolutionProblem
from dnncore.reference.fused_convolution import able, whole
from dnncore.reference.launch import Array, Parts, ReferenceAlgorithm, Value
from dnncore.reference.pooling import FORWARD

__all__ = ["ALGORITHMS"]


def _layer_by_layer(maths: Maths, problem: PooledConvolutionProblem, *arrays: Array) -> Value | Parts:
    value = whole(maths, problem.fused, *arrays).astype(problem.x.dtype.numpy).astype(arrays[0].dtype)
    pooling = next(one for one in FORWARD if one.maths is maths)
    return pooling.compute(problem.pooling, value)


def _unsupported(maths: Maths, problem: PooledConvolutionProblem) -> str | None:
    return None if able(maths, problem.fused) else "a tensor is empty"


def _temporaries(problem: PooledConvolutionProblem) -> int:
    return problem.fused.y.size


ALGORITHMS = tuple(
    ReferenceAlgorithm(name, partial(_layer_by_layer, maths), partial(_unsupported, maths), _temporaries, maths)
    for name, maths in (("layers_fp32", Maths.FP32), ("layers", Maths.FP64))
)
