"""Images: table lookups, what convolves their results or rounded images, and resampling in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from dnncore.backend import Offer
from dnncore.figures import DeviceFigures
from dnncore.problems import (
    FusedConvolutionProblem,
    ImageConvolutionProblem,
    ImageNormalizationProblem,
    ImageResizeProblem,
)
from dnncore.reference import fused_convolution, tensor
from dnncore.reference.launch import Array, Compute, Parts, ReferenceAlgorithm, ReferenceWork, Value

__all__ = ["CONVOLUTION", "NORMALIZATION", "RESIZE"]

_Pixels = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.int32]

_BITS = 22
"""Of a weight, after the point."""

_KEPT_BITS = 16
"""Of what the columns are summed from, after the point, where it is not rounded."""


def _normalization(problem: ImageNormalizationProblem, x: _Pixels, table: Array, mean: Array | None = None) -> Parts:
    """Image by image, and channel by channel, so that what passes between NumPy's functions stays in the cache."""
    assert problem.order is not None
    assert problem.border is not None
    height, width = x.shape[2:]
    top, left = problem.offset
    rows, columns = problem.y.shape[2:]
    inside = tuple(
        slice(max(-start, 0), max(min(extent, size - start), 0))
        for start, extent, size in ((top, rows, height), (left, columns, width))
    )
    source = tuple(slice(max(start, 0), max(start + extent, 0)) for start, extent in ((top, rows), (left, columns)))
    for n in range(x.shape[0]):
        for c, (channel, border) in enumerate(zip(problem.order, problem.border, strict=True)):
            value = np.full((rows, columns), table[c, border])
            value[inside] = table[c].take(x[n, channel][source])
            yield (n, c), value if mean is None else value - mean[c]


def _resize(problem: ImageResizeProblem, pixels: _Pixels, images: _Words, taps: _Words) -> Parts:
    assert problem.border is not None
    channels, *extents = problem.y.shape[1:]
    for n, (start, row_bytes, *tables, columns_first) in enumerate(images.tolist()):
        rows, columns = (_Axis(taps[at:], extent) for at, extent in zip(tables, extents, strict=True))
        result = np.empty((*extents, channels))
        result[...] = problem.border
        if rows.end and columns.end:
            image = np.lib.stride_tricks.as_strided(
                pixels[start:], (rows.end, columns.end, channels), (row_bytes, channels, 1), writeable=False
            )
            there = np.ix_(rows.count > 0, columns.count > 0)
            if columns_first:
                found = _resampled(image, rows, columns, problem.rounds_between)
            else:
                found = _resampled(image.swapaxes(0, 1), columns, rows, problem.rounds_between).swapaxes(0, 1)
            result[there] = found[there]
        yield (n,), np.moveaxis(result, 2, 0)


class _Axis:
    """The taps of a result's rows or columns, as they lie in `taps`."""

    def __init__(self, words: _Words, extent: int) -> None:
        self.first, self.count = words[:extent], words[extent : 2 * extent]
        self.most = int(self.count.max(initial=0))
        self.weights = words[2 * extent : (2 + self.most) * extent].reshape(self.most, extent)
        self.end = int((self.first + self.count).max(initial=0, where=self.count > 0))

    def sums(self, source: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Weighted sums [extent, ...] of source [whole axis, ...]."""
        shape = (-1, *(1,) * (source.ndim - 1))
        sums = np.zeros((self.first.size, *source.shape[1:]), np.int64)
        for tap in range(self.most):
            there = self.count > tap
            weights = np.where(there, self.weights[tap], 0).astype(np.int64).reshape(shape)
            sums += weights * source[np.where(there, self.first + tap, 0)]
        return sums


def _resampled(image: _Pixels, first: _Axis, second: _Axis, rounds_between: bool) -> npt.NDArray[np.int64]:
    """An image along its first dimension and then along its second."""
    kept = 0 if rounds_between else _KEPT_BITS
    sums = first.sums(image)
    between = _rounded(sums, _BITS) if rounds_between else sums >> (_BITS - kept)
    return _rounded(second.sums(between.swapaxes(0, 1)).swapaxes(0, 1), _BITS + kept)


def _rounded(sums: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """To pixels, from sums with so many bits after the point."""
    return ((sums + (1 << (bits - 1))) >> bits).clip(0, 255)


NORMALIZATION = (ReferenceAlgorithm("table", _normalization),)
RESIZE = (ReferenceAlgorithm("two_passes", _resize),)


@dataclass(frozen=True, slots=True)
class _ImageConvolution:
    """Table lookups or a rounding, then a fused convolution. Immutable.

    Args:
        convolution: Of what they give.
    """

    convolution: ReferenceAlgorithm

    @property
    def name(self) -> str:
        """That of the convolution."""
        return self.convolution.name

    def offer(self, problem: ImageConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What both take."""
        converting = tensor.ADD[0] if problem.table is None else NORMALIZATION[0]
        convolution = self.convolution.offer(problem.fused, figures)
        conversion = converting.offer(problem.conversion, figures)
        if isinstance(convolution, str) or isinstance(conversion, str):
            return convolution if isinstance(convolution, str) else str(conversion)
        compute = partial(_convolved, self.convolution.compute)
        work = partial(ReferenceWork, self.name, compute, problem, self.convolution.maths)
        return replace(convolution, seconds=conversion.seconds + convolution.seconds, prepare=work)


@lru_cache
def _fused(problem: ImageConvolutionProblem) -> FusedConvolutionProblem:
    """What follows the conversion: made once, not at each launch."""
    return problem.fused


def _convolved(
    convolve: Compute, problem: ImageConvolutionProblem, x: _Pixels | Array, w: Array, *others: Array
) -> Value | Parts:
    narrow = problem.w.dtype.numpy
    if problem.table is None:
        return convolve(_fused(problem), x.astype(narrow).astype(w.dtype), w, *others)
    *bias, table = others
    rounded = table.astype(narrow).astype(w.dtype)
    images = np.stack([rounded[c].take(x[:, c]) for c in range(x.shape[1])], axis=1)
    return convolve(_fused(problem), images, w, *bias)


CONVOLUTION = tuple(_ImageConvolution(algorithm) for algorithm in fused_convolution.DENSE)
