"""Images: a pixel at a time, in Python's integers where they are whole numbers."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import torch

from dnncore.problems import ImageConvolutionProblem, ImageNormalizationProblem, ImageResizeProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs

__all__: list[str] = []


@answers.register
def _(problem: ImageNormalizationProblem, x: Tensor, table: Tensor, mean: Tensor | None = None) -> Terms:
    assert problem.order is not None
    assert problem.border is not None
    value = torch.empty(problem.y.shape, dtype=torch.float64)
    magnitude = torch.empty_like(value)
    (top, left), (height, width) = problem.offset, x.shape[2:]
    for n, c, p, q in product(*map(range, problem.y.shape)):
        h, w = top + p, left + q
        inside = 0 <= h < height and 0 <= w < width
        pixel = int(x[n, problem.order[c], h, w]) if inside else problem.border[c]
        minus = 0.0 if mean is None else mean[c, p, q]
        value[n, c, p, q] = table[c, pixel] - minus
        magnitude[n, c, p, q] = abs(table[c, pixel]) + abs(minus)
    return value, magnitude, 1


@answers.register
def _(problem: ImageConvolutionProblem, x: Tensor, w: Tensor, *others: Tensor) -> Terms:
    dtype = getattr(torch, problem.w.dtype.value)
    if problem.table is None:
        found = answers(problem.fused, x.to(dtype).double(), w, *others)
        assert isinstance(found, tuple)
        return found
    *bias, table = others
    images = torch.stack([table[c].to(dtype)[x[:, c].long()].double() for c in range(x.shape[1])], dim=1)
    found = answers(problem.fused, images, w, *bias)
    assert isinstance(found, tuple)
    return found


@draw_inputs.register
def _(problem: ImageResizeProblem, rng: np.random.Generator) -> list[np.ndarray]:
    """Images of random sizes with any taps that stay inside, none for some rows and columns; the largest weights that are legal."""
    batch, channels, *extents = problem.y.shape
    images, taps = np.zeros((batch, 5), np.int32), np.zeros(problem.taps.size, np.int32)
    pixels_end, taps_end = 0, 0
    for n in range(batch):
        size = rng.integers(2, 9, 2)
        row_bytes = int(size[1] * channels + rng.integers(0, 5))
        images[n, :2], images[n, 4] = (pixels_end, row_bytes), n % 2
        pixels_end += int(size[0]) * row_bytes
        for axis, (extent, source) in enumerate(zip(extents, size, strict=True)):
            count = rng.integers(0, source + 1, extent)
            first = rng.integers(0, source - count + 1)
            weights = rng.normal(1, 1, (source, extent))
            weights *= 1.9 * 2**22 / np.abs(weights).sum(0)  # any more, and the sums would not fit into 32 bits
            weights = weights[: count.max()]
            table = np.concatenate([first[np.newaxis], count[np.newaxis], np.rint(weights)]).astype(np.int32)
            images[n, 2 + axis] = taps_end
            taps[taps_end : taps_end + table.size] = table.ravel()
            taps_end += table.size
    return [draw(problem.pixels, rng), images, taps]


@answers.register
def _(problem: ImageResizeProblem, pixels: Tensor, images: Tensor, taps: Tensor) -> Terms:
    assert problem.border is not None
    batch, channels, height, width = problem.y.shape
    words, value = taps.tolist(), torch.empty(problem.y.shape, dtype=torch.float64)
    for n, p, q in product(range(batch), range(height), range(width)):
        start, row_bytes, *begins, columns_first = images[n].tolist()
        rows, columns = (
            [(words[at + i] + tap, words[at + (2 + tap) * extent + i]) for tap in range(words[at + extent + i])]
            for at, extent, i in zip(begins, (height, width), (p, q), strict=True)
        )
        for c in range(channels):
            if not rows or not columns:
                value[n, c, p, q] = problem.border[c]
                continue
            outer, inner = (columns, rows) if columns_first else (rows, columns)
            steps = (channels, row_bytes) if columns_first else (row_bytes, channels)
            lines = [
                (sum(int(pixels[start + c + i * steps[0] + j * steps[1]]) * by for j, by in inner) / 2**22, weight)
                for i, weight in outer
            ]
            if problem.rounds_between:
                lines = [(_rounded(line), weight) for line, weight in lines]
            value[n, c, p, q] = _rounded(sum(line * weight for line, weight in lines) / 2**22)
    return value, value, 1


def _rounded(value: float) -> int:
    return min(max(math.floor(value + 0.5), 0), 255)
