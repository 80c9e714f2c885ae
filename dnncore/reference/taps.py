"""A filter's taps as strided slices of the padded input: what convolution and im2col share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from dnncore.descriptors import ConvolutionDescriptor, ConvolutionMode
from dnncore.reference.launch import Array, Index

__all__ = ["interior", "pad", "padded_shape", "taps"]

_ALL = slice(None)


def taps(
    convolution: ConvolutionDescriptor, filter_shape: Sequence[int], output_shape: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Index]]:
    """For each tap, its place in the filter and the slices of the padded input that it meets (true convolution: rotated).

    Args:
        convolution: How the filter moves.
        filter_shape: Its spatial extents.
        output_shape: The output's spatial extents.
    """
    for place in itertools.product(*map(range, filter_shape)):
        slices = tuple(
            slice(tap * dilation, tap * dilation + (extent - 1) * stride + 1, stride)
            for tap, dilation, stride, extent in zip(
                place, convolution.dilation, convolution.stride, output_shape, strict=True
            )
        )
        if convolution.mode is ConvolutionMode.CONVOLUTION:
            place = tuple(extent - 1 - tap for tap, extent in zip(place, filter_shape, strict=True))
        yield place, (_ALL, _ALL, *slices)


def padded_shape(convolution: ConvolutionDescriptor, x_shape: Sequence[int]) -> tuple[int, ...]:
    """Shape [N, C, *padded input]."""
    spatial = zip(x_shape[2:], convolution.padding, strict=True)
    return (*x_shape[:2], *(extent + sum(pair) for extent, pair in spatial))


def interior(convolution: ConvolutionDescriptor, x_shape: Sequence[int]) -> Index:
    """Where x lies in the padded input."""
    spatial = zip(x_shape[2:], convolution.padding, strict=True)
    return (_ALL, _ALL, *(slice(before, before + extent) for extent, (before, _) in spatial))


def pad(convolution: ConvolutionDescriptor, x: Array) -> Array:
    """x with zeros around it; itself where there is no padding."""
    shape = padded_shape(convolution, x.shape)
    if shape == x.shape:
        return x
    padded = np.zeros(shape, x.dtype)
    padded[interior(convolution, x.shape)] = x
    return padded
