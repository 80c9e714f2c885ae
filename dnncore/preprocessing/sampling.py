"""Interpolation without antialiasing, which Pillow does not have: each new pixel is a mixture of the few next to its place.

It is what OpenCV's INTER_LINEAR and INTER_CUBIC and PyTorch's interpolate(antialias=False, align_corners=False) do. When an image
gets much smaller most of its pixels are not looked at; nets that were trained so have to be served so.
"""

from __future__ import annotations

import numpy as np

__all__ = ["SAMPLED", "sample", "taps"]

SAMPLED = ("bilinear", "bicubic")
"""The interpolations that exist without antialiasing."""

_A = -0.75
"""Keys's parameter of the cubic, as in OpenCV and PyTorch; Pillow has -0.5."""


def sample(pixels: np.ndarray, height: int, width: int, interpolation: str) -> np.ndarray:
    """Resize by looking at 2 x 2 (bilinear) or 4 x 4 (bicubic) pixels for each new one, in float32, rounded half to even.

    Pixel centres correspond: new row p lies at (p + 0.5) * H / height - 0.5; beyond the borders the outermost pixels go on.
    Equal to PyTorch's interpolation in float32, rounded and clamped, but for one step of 255 where sums in another order round to
    the other side.

    Args:
        pixels: uint8 [H, W, C].
        height: Of the result.
        width: Of the result.
        interpolation: "bilinear" or "bicubic".

    Returns:
        uint8 [height, width, C]. Memory is taken for the result only, whatever the size of the source.
    """
    rows, row_weights = taps(pixels.shape[0], height, interpolation)
    columns, column_weights = taps(pixels.shape[1], width, interpolation)
    result = np.zeros((height, width, pixels.shape[2]), np.float32)
    for row, row_weight in zip(rows, row_weights, strict=True):
        line = np.zeros_like(result)
        for column, column_weight in zip(columns, column_weights, strict=True):
            line += pixels[np.ix_(row, column)] * column_weight[:, np.newaxis]
        result += line * row_weight[:, np.newaxis, np.newaxis]
    return np.rint(result, out=result).clip(0, 255).astype(np.uint8)


def taps(old: int, new: int, interpolation: str) -> tuple[np.ndarray, np.ndarray]:
    """Indices (int64) and weights (float32), [taps, new], of the old pixels that make up each new one."""
    place = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * (np.float32(old) / np.float32(new)) - np.float32(0.5)
    if interpolation == "bilinear":
        place = np.maximum(place, 0)
    first = np.floor(place)
    offset = place - first
    if interpolation == "bilinear":
        taps = {0: 1 - offset, 1: offset}
    else:
        taps = {-1: _far(1 + offset), 0: _near(offset), 1: _near(1 - offset), 2: _far(2 - offset)}
    indices = np.stack([first.astype(np.int64) + step for step in taps])
    return indices.clip(0, old - 1), np.stack(list(taps.values()))


def _near(x: np.ndarray) -> np.ndarray:
    """The cubic's weight at a distance of 0..1."""
    weight: np.ndarray = ((_A + 2) * x - (_A + 3)) * x * x + 1
    return weight


def _far(x: np.ndarray) -> np.ndarray:
    """The cubic's weight at a distance of 1..2."""
    weight: np.ndarray = ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
    return weight
