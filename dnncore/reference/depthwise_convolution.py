"""Depthwise convolution in float32: every output channel reads one input channel, so that there is no product for BLAS to make.

A plane of the padded input lies in a row, so that what a tap meets is that row from some place on, and a step for a tap is one long
loop of NumPy's instead of a short one for each row of the image:

    padded plane    a b c d | e f g h | i j k l         4 wide, for an output that is 2 wide and a filter of 3 x 3
    tap (0, 1)        b c d | e f g h | i ...
    output          0 1 . . | 2 3 . .                   what lies at the points is thrown away

Where the filter moves by more than one place, the input is split first into the phases that a tap sees: every stride-th row and
column from some place on. Images and channels are taken a few at a time, so that a block stays in the cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from dnncore.figures import Maths
from dnncore.problems import ConvolutionProblem
from dnncore.reference.launch import Array, Index, ReferenceAlgorithm, few
from dnncore.reference.taps import taps

__all__ = ["FORWARD"]

_ARRAYS = 2
"""Of a block's size, which are read and written for each tap."""


def _extents(problem: ConvolutionProblem) -> tuple[int, ...]:
    """Of a phase: the places of the output, and how much farther the last tap looks."""
    convolution, filters = problem.convolution, problem.w.shape[2:]
    return tuple(
        extent + (taps_ - 1) * dilation // stride
        for extent, taps_, dilation, stride in zip(
            problem.y.shape[2:], filters, convolution.dilation, convolution.stride, strict=True
        )
    )


def _phases(problem: ConvolutionProblem, x: Array) -> dict[tuple[int, ...], Array]:
    """Every stride-th place of the padded x [N, C, *spatial] from each place on, [N, C, row]; behind it there is room for a row."""
    strides, extents = problem.convolution.stride, _extents(problem)
    size, room = math.prod(extents), math.prod(extents[1:])
    found = {}
    for phase in itertools.product(*map(range, strides)):
        rows = np.zeros((*x.shape[:2], size + room), x.dtype)
        planes = rows[:, :, :size].reshape(*x.shape[:2], *extents)
        into: list[slice] = []
        source: list[slice] = []
        for first, stride, extent, (before, _), length in zip(
            phase, strides, extents, problem.convolution.padding, x.shape[2:], strict=True
        ):
            skipped = -(-max(before - first, 0) // stride)  # places of this phase that are in the padding
            start = first + skipped * stride - before
            count = max(min(-(-(length - start) // stride), extent - skipped), 0)
            into.append(slice(skipped, skipped + count))
            source.append(slice(start, start + count * stride, stride))
        planes[:, :, *into] = x[:, :, *source]
        found[phase] = rows
    return found


def _block(problem: ConvolutionProblem, x: Array, w: Array) -> Array:
    """y of some images and channels, [N, C, K/C, *output]; w is [C, K/C, taps]."""
    output, extents, stride = problem.y.shape[2:], _extents(problem), problem.convolution.stride
    phases = _phases(problem, x)
    length = output[0] * math.prod(extents[1:])
    total = np.empty((*x.shape[:2], w.shape[1], length), x.dtype)
    product = np.empty_like(total)
    for number, (place, slices) in enumerate(taps(problem.convolution, problem.w.shape[2:], output)):
        starts = [one.start for one in slices[2:] if isinstance(one, slice)]
        rows = phases[tuple(start % step for start, step in zip(starts, stride, strict=True))]
        first = 0
        for start, step, extent in zip(starts, stride, extents, strict=True):
            first = first * extent + start // step
        factor = w[:, :, *place, None]
        met = rows[:, :, None, first : first + length]
        if number == 0:
            np.multiply(met, factor, out=total)
        else:
            np.multiply(met, factor, out=product)
            total += product
    planes = total.reshape(*total.shape[:3], output[0], *extents[1:])
    return planes[:, :, :, *map(slice, output)]


def _forward(problem: ConvolutionProblem, x: Array, w: Array) -> Iterator[tuple[Index, Array]]:
    """Parts of y, each of some images and channels; they may be changed."""
    channels, multiple = x.shape[1], len(w) // x.shape[1]
    filters = w.reshape(channels, multiple, *w.shape[2:])
    elements = _ARRAYS * max(1, multiple) * math.prod(_extents(problem)) * math.prod(problem.convolution.stride)
    for images in few(len(x), channels * elements):
        for some in few(channels, (images.stop - images.start) * elements):
            y = _block(problem, x[images, some], filters[some])
            outputs = slice(some.start * multiple, some.stop * multiple)
            yield (images, outputs), y.reshape(y.shape[0], -1, *y.shape[3:])


def _unsuitable(problem: ConvolutionProblem) -> str | None:
    if not (problem.x.size and problem.w.size and problem.y.size):
        return "a tensor is empty"
    if problem.w.shape[1] != 1 or problem.x.shape[1] == 1:
        return f"{problem.w.shape[1]} of {problem.x.shape[1]} channels meet a filter, not one of several"
    return None


def _phases_and_y(problem: ConvolutionProblem) -> int:
    """Elements of the padded input and of y; what is done for each tap stays in the cache."""
    return problem.x.size + 2 * problem.y.size


FORWARD = ReferenceAlgorithm("depthwise", _forward, _unsuitable, _phases_and_y, Maths.FP32)
"""One tap after the other."""
