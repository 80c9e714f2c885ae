"""Tensor maps as values: how the copy engine of sm_90 sees a tensor, all but where it is. Pure.

The engine (TMA) copies windows of a tensor between global and shared memory; what lies outside of the tensor is read as zeros and
not written. Dimensions are counted from the innermost, along which neighbours are neighbours in memory. In shared memory the rows
of a window are 128 or 64 bytes, one after the other, their 16-byte chunks exchanged as the matrix units want them (128-byte or
64-byte swizzle); or, where nothing is exchanged, any multiple of 16 bytes.

Source of the names and limits: CUDA Driver API 13.0, "Tensor Map Object Management".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnncore.dtypes import DType

__all__ = [
    "ALIGNMENT_BYTES",
    "FARTHEST_BYTES",
    "LARGEST_STEP",
    "TENSOR_MAP",
    "TENSOR_MAP_BYTES",
    "BoxMap",
    "PixelMap",
    "TensorMap",
    "corners_fit",
]

TENSOR_MAP_BYTES = 128
"""Of a CUtensorMap."""

TENSOR_MAP = np.dtype(f"V{TENSOR_MAP_BYTES}")
"""A field of a struct that takes one; `dnncore::TensorMap` of ptx/tensor_copy.cuh, which begins at a multiple of 64 bytes."""

ALIGNMENT_BYTES = 16
"""What a tensor's address, and every stride but the innermost, must be a multiple of."""

FARTHEST_BYTES = 2**40
"""What every stride is less than."""

LARGEST_STEP = 8
"""Most elements from one pixel to the next."""

_FIRST_CORNER, _LAST_CORNER = -128, 127


def corners_fit(places: Sequence[int]) -> bool:
    """Whether corners of two-dimensional images can be so many pixels from theirs."""
    return min(places) >= _FIRST_CORNER and max(places) <= _LAST_CORNER


class BoxMap(NamedTuple):
    """A tensor of which boxes are copied: cuTensorMapEncodeTiled. Immutable.

    Args:
        dtype: Of its elements.
        sizes: Extents, up to five.
        strides_bytes: From one to the next along every dimension but the innermost.
        box: Extents of what one copy moves.
        rounds: Whether copies into shared memory round elements of float32 to tf32: to the nearest, ties to even.
        swizzles: Whether chunks are exchanged.
    """

    dtype: DType
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    rounds: bool = False
    swizzles: bool = True

    @property
    def swizzle_bytes(self) -> int:
        """Of the rows that one copy moves; 0 where their chunks stay in place."""
        return self.box[0] * self.dtype.itemsize if self.swizzles else 0


class PixelMap(NamedTuple):
    """Images of which runs of pixels are copied, as one tap of a filter meets them: cuTensorMapEncodeIm2col. Immutable.

    The pixels of a run are some steps apart, go on in the next row and in the next image, and stay between two corners; a copy
    moves all of them by a tap's offset.

    Args:
        dtype: Of its elements.
        sizes: (C, W, H, N).
        strides_bytes: Of W, H and N.
        lower: First pixel in a row and first row, for the first tap: minus the padding before.
        upper: Last ones, counted from the last of the image.
        steps: From one pixel to the next in W and in H: the convolution's strides.
        channels: How many of each pixel one copy moves.
        pixels: How many pixels it moves.
        rounds: As of `BoxMap`.
    """

    dtype: DType
    sizes: tuple[int, int, int, int]
    strides_bytes: tuple[int, int, int]
    lower: tuple[int, int]
    upper: tuple[int, int]
    steps: tuple[int, int]
    channels: int
    pixels: int
    rounds: bool = False

    @property
    def swizzle_bytes(self) -> int:
        """Of the rows that one copy moves: a pixel's channels."""
        return self.channels * self.dtype.itemsize


TensorMap = BoxMap | PixelMap
