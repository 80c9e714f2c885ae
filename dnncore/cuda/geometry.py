"""`dnncore::Geometry` in NumPy, and how the tensors of a convolution are laid out beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnncore.cuda.params import record, struct
from dnncore.descriptors import MAX_NDIM, ConvolutionDescriptor, ConvolutionMode

__all__ = ["GEOMETRY", "MAX_SPATIAL", "geometry", "spatial", "taps"]

MAX_SPATIAL = MAX_NDIM - 2
"""`dnncore::kMaxSpatial`."""

GEOMETRY = struct(
    ("input", "<i8", MAX_SPATIAL),
    ("filter", "<i8", MAX_SPATIAL),
    ("output", "<i8", MAX_SPATIAL),
    ("padding", "<i8", MAX_SPATIAL),
    ("stride", "<i8", MAX_SPATIAL),
    ("dilation", "<i8", MAX_SPATIAL),
)


def spatial(values: Sequence[int], missing: int) -> tuple[int, ...]:
    """Values per spatial dimension, with `missing` in front for each that is not there."""
    return (*(missing,) * (MAX_SPATIAL - len(values)), *values)


def geometry(
    input_shape: Sequence[int],
    filter_shape: Sequence[int],
    output_shape: Sequence[int],
    convolution: ConvolutionDescriptor,
) -> np.ndarray:
    """Fill in a GEOMETRY from the spatial extents of input, filter and output."""
    return record(
        GEOMETRY,
        input=spatial(input_shape, 1),
        filter=spatial(filter_shape, 1),
        output=spatial(output_shape, 1),
        padding=spatial([before for before, _ in convolution.padding], 0),
        stride=spatial(convolution.stride, 1),
        dilation=spatial(convolution.dilation, 1),
    )


def taps(
    filter_shape: Sequence[int], strides: Sequence[int], convolution: ConvolutionDescriptor
) -> tuple[int, tuple[int, ...]]:
    """(offset, strides) with which the taps are counted as cross-correlation meets them: a true convolution's from the last."""
    if convolution.mode is ConvolutionMode.CROSS_CORRELATION:
        return 0, tuple(strides)
    offset = sum((extent - 1) * stride for extent, stride in zip(filter_shape, strides, strict=True))
    return offset, tuple(-stride for stride in strides)
