"""Convolution in float32, block by block: what a block gathers is still in the cache when it is multiplied.

A block is a few images, or a few rows of one image's output, so that its patches have at most BLOCK_ELEMENTS: memory does not grow
with the batch. With p the patches of a block, the three directions are BLAS's products y = w p; p' = w' dy, added to where p would
be gathered from; and dw += dy p'. A 1 x 1 filter gathers nothing where the places lie in a row already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dnncore.figures import Maths
from dnncore.problems import ConvolutionProblem, Direction
from dnncore.reference.launch import Array, Index, Parts, ReferenceAlgorithm, few
from dnncore.reference.taps import interior, pad, padded_shape, taps

__all__ = ["ALGORITHMS", "forward"]


def _num_taps(problem: ConvolutionProblem) -> int:
    return math.prod(problem.w.shape[2:])


def _row_elements(problem: ConvolutionProblem) -> int:
    """Of the patches for one row of an image's output, or of their product with w where it has more."""
    channels = max(problem.x.shape[1] * _num_taps(problem), problem.y.shape[1])
    return channels * math.prod(problem.y.shape[3:])


def _images(problem: ConvolutionProblem) -> Iterator[slice]:
    return few(problem.y.shape[0], _row_elements(problem) * problem.y.shape[2])


def _rows(problem: ConvolutionProblem) -> Iterator[tuple[slice, slice, tuple[int, ...]]]:
    """Some rows of the output, those of the padded input from the first that they meet on, and the output's extents in a block."""
    for rows in few(problem.y.shape[2], _row_elements(problem)):
        met = slice(rows.start * problem.convolution.stride[0], None)
        yield rows, met, (rows.stop - rows.start, *problem.y.shape[3:])


def _taps(problem: ConvolutionProblem, output: tuple[int, ...]) -> Iterator[tuple[Index, Index]]:
    """For each tap, its place in patches [C, *filter, N, *output], and the slices of the padded input that it meets."""
    for place, slices in taps(problem.convolution, problem.w.shape[2:], output):
        yield (slice(None), *place), slices


def _matrix(problem: ConvolutionProblem, array: Array) -> Array:
    """[N, channels, *places] -> [G, channels / G, N * places]; a view of one image whose places lie in a row."""
    groups = problem.convolution.groups
    return array.swapaxes(0, 1).reshape(groups, array.shape[1] // groups, -1)


def _weights(problem: ConvolutionProblem, w: Array) -> Array:
    """[G, K/G, C/G * taps]."""
    groups = problem.convolution.groups
    return w.reshape(groups, len(w) // groups, -1)


def _patches(problem: ConvolutionProblem, padded: Array, output: tuple[int, ...]) -> Array:
    """[G, C/G * taps, N * places], from what the first row of the output meets on."""
    if _num_taps(problem) == 1:
        ((_, slices),) = _taps(problem, output)
        return _matrix(problem, padded[slices])
    num_images, channels = padded.shape[:2]
    patches = np.empty((channels, *problem.w.shape[2:], num_images, *output), padded.dtype)
    for tap, slices in _taps(problem, output):
        patches[tap] = padded[slices].swapaxes(0, 1)
    return patches.reshape(problem.convolution.groups, -1, num_images * math.prod(output))


def forward(problem: ConvolutionProblem, x: Array, w: Array) -> Iterator[tuple[Index, Array]]:
    """Parts of y, each of some images or of some rows of one; they may be changed."""
    weights = _weights(problem, w)
    for images in _images(problem):
        padded = pad(problem.convolution, x[images])
        for rows, met, output in _rows(problem):
            y = weights @ _patches(problem, padded[:, :, met], output)
            yield (images, slice(None), rows), y.reshape(len(w), len(padded), *output).swapaxes(0, 1)


def _backward_data(problem: ConvolutionProblem, w: Array, dy: Array) -> Parts:
    weights = _weights(problem, w).swapaxes(1, 2)
    num_channels, *padded_extents = padded_shape(problem.convolution, problem.x.shape)[1:]
    for images in _images(problem):
        gradient = dy[images]
        padded = np.zeros((len(gradient), num_channels, *padded_extents), dy.dtype)
        for rows, met, output in _rows(problem):
            matrix = _matrix(problem, gradient[:, :, rows])
            # Where nothing is added up, as in a depthwise convolution, BLAS is slow.
            patches = weights * matrix if matrix.shape[1] == 1 else weights @ matrix
            patches = patches.reshape(num_channels, *problem.w.shape[2:], len(gradient), *output)
            for tap, slices in _taps(problem, output):
                padded[:, :, met][slices] += patches[tap].swapaxes(0, 1)
        yield (images,), padded[interior(problem.convolution, problem.x.shape)]


def _backward_filter(problem: ConvolutionProblem, x: Array, dy: Array) -> Array:
    dw = _weights(problem, np.zeros(problem.w.shape, dy.dtype))
    for images in _images(problem):
        padded = pad(problem.convolution, x[images])
        for rows, met, output in _rows(problem):
            patches = _patches(problem, padded[:, :, met], output)
            dw += _matrix(problem, dy[images, :, rows]) @ patches.swapaxes(1, 2)
    return dw.reshape(problem.w.shape)


def _unsuitable_for_blocks(problem: ConvolutionProblem) -> str | None:
    return None if problem.x.size and problem.w.size and problem.y.size else "a tensor is empty"


def _patches_and_y(problem: ConvolutionProblem) -> int:
    """Elements of all patches, unless there is one tap, and of y in another order."""
    places = problem.y.shape[0] * math.prod(problem.y.shape[2:])
    return (places * problem.x.shape[1] * _num_taps(problem) if _num_taps(problem) > 1 else 0) + problem.y.size


_LIMITS = (_unsuitable_for_blocks, _patches_and_y, Maths.FP32)

ALGORITHMS: dict[Direction, ReferenceAlgorithm] = {
    Direction.FORWARD: ReferenceAlgorithm("gemm_in_blocks", forward, *_LIMITS),
    Direction.BACKWARD_DATA: ReferenceAlgorithm("gemm_in_blocks", _backward_data, *_LIMITS),
    Direction.BACKWARD_FILTER: ReferenceAlgorithm("gemm_in_blocks", _backward_filter, *_LIMITS),
}
