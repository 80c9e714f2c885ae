"""Gathering patches into columns, and its adjoint."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dnncore.problems import Col2ImProblem, Im2ColProblem
from dnncore.reference.launch import Array, Index, ReferenceAlgorithm
from dnncore.reference.taps import interior, pad, padded_shape, taps

__all__ = ["COL2IM", "IM2COL"]


def _split_shape(problem: Im2ColProblem | Col2ImProblem) -> tuple[int, ...]:
    """The columns with a dimension for each of the filter's and of the output's: [N, C, *filter, *output]."""
    return (*problem.x.shape[:2], *problem.filter_shape, *problem.output_shape)


def _taps(problem: Im2ColProblem | Col2ImProblem) -> Iterator[tuple[Index, Index]]:
    """For each tap, its index in the split columns and the slices of the padded input that it meets."""
    for place, slices in taps(problem.convolution, problem.filter_shape, problem.output_shape):
        yield (slice(None), slice(None), *place), slices


def _im2col(problem: Im2ColProblem, x: Array) -> Array:
    padded = pad(problem.convolution, x)
    columns = np.empty(_split_shape(problem))
    for tap, slices in _taps(problem):
        columns[tap] = padded[slices]
    return columns.reshape(problem.columns.shape)


def _col2im(problem: Col2ImProblem, columns: Array) -> Array:
    split = columns.reshape(_split_shape(problem))
    padded = np.zeros(padded_shape(problem.convolution, problem.x.shape))
    for tap, slices in _taps(problem):
        padded[slices] += split[tap]
    return padded[interior(problem.convolution, problem.x.shape)]


IM2COL = (ReferenceAlgorithm("taps", _im2col),)
COL2IM = (ReferenceAlgorithm("taps", _col2im),)
