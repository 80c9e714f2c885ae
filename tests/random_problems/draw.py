"""The n-th random convolution, the same on every machine."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from dnncore.descriptors import ConvolutionDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction
from tests.cases import Case
from tests.cases.case import describe

__all__ = ["random_case"]

_DTYPES = (DType.FLOAT32,) * 5 + (DType.FLOAT64, DType.FLOAT16, DType.FLOAT16, DType.BFLOAT16)
_OF_INT8 = (DType.INT8, DType.INT32, DType.FLOAT32)
_LAYOUTS = ("NCHW", "NCHW", "NHWC", "CHWN", "gaps")
_PER_PLANE = 32
_PER_GROUP = 1024
_BLENDS = ((1.0, 0.0), (1.0, 0.0), (1.0, 1.0), (-0.5, 2.0), (0.0, 1.0))


def random_case(number: int, max_macs: int = 1 << 40) -> Case:
    """Draw a convolution.

    Batch up to 3, up to 70 channels each way, images up to 19 x 19, filters up to 7 x 7, stride up to 3, dilation up to 2, groups,
    padding that may be wider than the image and differ at the four sides, any layouts, any direction and dtype, blending; of int8
    forward alone, into int8, int32 and fp32.

    Args:
        number: Which one.
        max_macs: Most multiply-adds, with 32 for each plane of an operand, which some algorithms transform, and 1024 for each
            group, which has products of its own at every frequency; what has more is drawn again.
    """
    rng = random.Random(number)
    while True:
        problem = _draw(rng)
        if problem is not None and _work(problem) <= max_macs:
            alpha, beta = rng.choice(_BLENDS)
            if problem.y.dtype is DType.INT8:  # not all of them saturated
                alpha /= 64 * math.sqrt(math.prod(problem.w.shape[1:]))
            return Case(f"random-{number}", problem, alpha, beta)


def _work(problem: ConvolutionProblem) -> int:
    planes = sum(one.shape[0] * one.shape[1] for one in (problem.x, problem.w, problem.y))
    return problem.macs + _PER_PLANE * planes + _PER_GROUP * problem.convolution.groups


def _draw(rng: random.Random) -> ConvolutionProblem | None:
    """A convolution, None where the filter does not fit into the padded image."""
    groups = rng.choice((1, 1, 1, 2, 3, rng.randint(1, 12)))
    c, k = (_channels(rng, 70 // groups) for _ in range(2))
    if rng.random() < 0.1:  # depthwise
        groups, c, k = rng.randint(1, 70), 1, 1
    x = (rng.randint(1, 3), c * groups, rng.randint(1, 19), rng.randint(1, 19))
    w = (k * groups, c, *_filter(rng))
    conv = ConvolutionDescriptor.make(
        padding=[(_padding(rng), _padding(rng)), (_padding(rng), _padding(rng))],
        stride=[rng.choice((1, 1, 1, 2, 3)) for _ in range(2)],
        dilation=[rng.choice((1, 1, 2)) for _ in range(2)],
        groups=groups,
        mode=rng.choice(("cross_correlation", "cross_correlation", "convolution")),
    )
    if any(
        extent + sum(pair) < (taps - 1) * dilation + 1
        for extent, pair, taps, dilation in zip(x[2:], conv.padding, w[2:], conv.dilation, strict=True)
    ):
        return None
    dtype = rng.choice(_DTYPES)
    tx, tw, ty = (describe(s, dtype, rng.choice(_LAYOUTS)) for s in (x, w, conv.output_shape(x, w)))
    direction = rng.choice(list(Direction))
    if direction is Direction.FORWARD and rng.random() < 0.25:
        tx, tw, ty = (
            replace(tx, dtype=DType.INT8),
            replace(tw, dtype=DType.INT8),
            replace(ty, dtype=rng.choice(_OF_INT8)),
        )
    return ConvolutionProblem(direction, tx, tw, ty, conv)


def _channels(rng: random.Random, most: int) -> int:
    """Few as often as many, and numbers that fill a tile as well as those that do not."""
    return min(most, rng.choice((1, 2, 3, rng.randint(1, 16), rng.randint(1, 70), 8 * rng.randint(1, 8))))


def _filter(rng: random.Random) -> tuple[int, int]:
    usual = rng.choice((1, 3, 3, 5))
    return (usual, usual) if rng.random() < 0.5 else (rng.randint(1, 7), rng.randint(1, 7))


def _padding(rng: random.Random) -> int:
    return rng.choice((0, 0, 1, 1, 2, 3, rng.randint(0, 20)))
