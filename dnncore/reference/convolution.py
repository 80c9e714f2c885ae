"""Convolution as a sum over the filter's taps, and as one matrix product over gathered patches.

For one tap the input that meets every output is a strided slice, so the three directions are three products of the same operands:
y += w x, dx += w' dy, dw = dy x'. Padding is zeros around a copy of x. Formulas: arXiv 1410.0759, section 3.

These add up in float64 and are for reading and for comparing with; `blocked_convolution` has the fast ones, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dnncore.problems import ConvolutionProblem, Direction
from dnncore.reference.launch import Array, Index, ReferenceAlgorithm
from dnncore.reference.taps import interior, pad, padded_shape, taps

__all__ = ["EXACT"]


def _taps(problem: ConvolutionProblem) -> Iterator[tuple[Index, Index]]:
    """For each tap, its index in w and the slices of the padded input that it meets."""
    for place, slices in taps(problem.convolution, problem.w.shape[2:], problem.y.shape[2:]):
        yield (slice(None), slice(None), *place), slices


def _group_x(problem: ConvolutionProblem, x: Array) -> Array:
    """[N, C, *spatial] -> [N, G, C/G, places]; a copy where the slice is strided."""
    groups = problem.convolution.groups
    n, c = x.shape[:2]
    return x.reshape(n, groups, c // groups, math.prod(x.shape[2:]))


def _forward_taps(problem: ConvolutionProblem, x: Array, w: Array) -> Array:
    groups = problem.convolution.groups
    padded = pad(problem.convolution, x)
    k = w.shape[0]
    y = np.zeros((x.shape[0], groups, k // groups, math.prod(problem.y.shape[2:])))
    for tap, slices in _taps(problem):
        weights = w[tap].reshape(groups, k // groups, w.shape[1])
        y += weights @ _group_x(problem, padded[slices])
    return y.reshape(problem.y.shape)


def _backward_data_taps(problem: ConvolutionProblem, w: Array, dy: Array) -> Array:
    groups = problem.convolution.groups
    k = w.shape[0]
    gradient = _group_x(problem, dy)
    padded = np.zeros(padded_shape(problem.convolution, problem.x.shape))
    for tap, slices in _taps(problem):
        weights = w[tap].reshape(groups, k // groups, w.shape[1])
        target = padded[slices]
        target += (weights.swapaxes(1, 2) @ gradient).reshape(target.shape)
    return padded[interior(problem.convolution, problem.x.shape)]


def _backward_filter_taps(problem: ConvolutionProblem, x: Array, dy: Array) -> Array:
    padded = pad(problem.convolution, x)
    gradient = _group_x(problem, dy)
    dw = np.empty(problem.w.shape)
    for tap, slices in _taps(problem):
        patch = _group_x(problem, padded[slices])
        product = np.einsum("ngkp,ngcp->gkc", gradient, patch, optimize=True)
        dw[tap] = product.reshape(problem.w.shape[:2])
    return dw


def _patches(problem: ConvolutionProblem, x: Array) -> Array:
    """im2col: [G, C/G * taps, N * places], the taps in the filter's order."""
    groups = problem.convolution.groups
    padded = pad(problem.convolution, x).swapaxes(0, 1)
    (n, c), output = x.shape[:2], problem.y.shape[2:]
    columns = np.empty((groups, c // groups, *problem.w.shape[2:], n, *output))
    for tap, slices in _taps(problem):
        columns[tap] = padded[slices].reshape(groups, c // groups, n, *output)
    return columns.reshape(groups, -1, n * math.prod(output))


def _rows(problem: ConvolutionProblem, dy: Array) -> Array:
    """[N, K, *output] -> [G, K/G, N * places]."""
    groups = problem.convolution.groups
    n, k = dy.shape[:2]
    return np.moveaxis(dy.reshape(n, groups, k // groups, -1), 0, 2).reshape(groups, k // groups, -1)


def _forward_gemm(problem: ConvolutionProblem, x: Array, w: Array) -> Array:
    groups, (n, k) = problem.convolution.groups, problem.y.shape[:2]
    y = w.reshape(groups, k // groups, -1) @ _patches(problem, x)
    return np.moveaxis(y.reshape(groups, k // groups, n, -1), 2, 0).reshape(problem.y.shape)


def _backward_filter_gemm(problem: ConvolutionProblem, x: Array, dy: Array) -> Array:
    dw = _rows(problem, dy) @ _patches(problem, x).swapaxes(1, 2)
    return dw.reshape(problem.w.shape)


_PATCH_LIMIT = 1 << 28


def _patch_elements(problem: ConvolutionProblem) -> int:
    """Elements of x under all taps of all windows."""
    return problem.y.shape[0] * math.prod(problem.y.shape[2:]) * problem.x.shape[1] * math.prod(problem.w.shape[2:])


def _unsuitable_for_patches(problem: ConvolutionProblem) -> str | None:
    """Gathered patches repeat x for each tap, so their size is bounded."""
    if not (problem.x.size and problem.w.size):
        return "a tensor is empty"
    elements = _patch_elements(problem)
    return f"{elements} gathered elements, at most {_PATCH_LIMIT}" if elements > _PATCH_LIMIT else None


def _patches_and_y(problem: ConvolutionProblem) -> int:
    """Elements of all patches, and of y in another order."""
    return _patch_elements(problem) + problem.y.size


def _slices_and_sums(problem: ConvolutionProblem) -> int:
    """Elements that the taps meet, and those of y, or of its gradient, for each tap and once more."""
    return _patch_elements(problem) + problem.y.size * (1 + math.prod(problem.w.shape[2:]))


EXACT: dict[Direction, tuple[ReferenceAlgorithm, ...]] = {
    Direction.FORWARD: (
        ReferenceAlgorithm("gemm", _forward_gemm, _unsuitable_for_patches, _patches_and_y),
        ReferenceAlgorithm("taps", _forward_taps, temporaries=_slices_and_sums),
    ),
    Direction.BACKWARD_DATA: (ReferenceAlgorithm("taps", _backward_data_taps, temporaries=_slices_and_sums),),
    Direction.BACKWARD_FILTER: (
        ReferenceAlgorithm("gemm", _backward_filter_gemm, _unsuitable_for_patches, _patches_and_y),
        ReferenceAlgorithm("taps", _backward_filter_taps, temporaries=_slices_and_sums),
    ),
}
"""Those that add up in float64, fastest first."""
