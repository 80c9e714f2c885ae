"""What tensors look like that nobody described: results in the format of the operands, and operands seen in another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError

__all__ = [
    "along_channels",
    "as_rows",
    "is_channels_last",
    "like",
    "new",
    "relaid",
    "with_leading",
    "without_leading",
]


def new(shape: Sequence[int], *references: TensorDescriptor, dtype: DType | None = None) -> TensorDescriptor:
    """What convolution and pooling return.

    Args:
        shape: Its shape.
        references: It is channels-last where one of these is, else row-major, and has the dtype of the first.
        dtype: Another dtype.
    """
    first = references[0]
    last = any(is_channels_last(reference.shape, reference.strides) for reference in references)
    layout = Layout.NHWC if last and len(shape) == first.ndim else Layout.NCHW
    return TensorDescriptor.packed(tuple(shape), dtype or first.dtype, layout)


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """What PyTorch takes for channels-last: 2 or 3 spatial dimensions, and strides in that order, with gaps or without."""
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    reach = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        # Where all strides are equal, as of [N, 1, 1, 1], it could be either, and is row-major.
        if shape[axis] == 0 or strides[axis] < reach or (axis == 0 and reach == strides[1]):
            return False
        reach = strides[axis] * shape[axis]
    return True


def relaid(tensor: TensorDescriptor) -> TensorDescriptor | None:
    """[N, C, H, W] with channels innermost and without gaps; None where channels are innermost already, or dimensions others."""
    if tensor.ndim != 4 or tensor.shape[1] == 1 or tensor.strides[1] == 1:
        return None
    return TensorDescriptor.packed(tensor.shape, tensor.dtype, Layout.NHWC)


def like(reference: TensorDescriptor) -> TensorDescriptor:
    """What is computed element by element: the same shape, dimensions in the same order in memory, without gaps."""
    if reference.is_row_major or reference.is_packed:
        return reference
    strides, step = [0] * reference.ndim, 1
    for axis in sorted(range(reference.ndim), key=lambda axis: (reference.strides[axis], -axis)):
        strides[axis] = step
        step *= max(reference.shape[axis], 1)
    return TensorDescriptor(reference.dtype, reference.shape, tuple(strides))


def along_channels(parameter: TensorDescriptor, ndim: int) -> TensorDescriptor:
    """[C] as [1, C, 1, ...] of `ndim` dimensions.

    Raises:
        BadParamError: the parameter is no vector.
    """
    if parameter.ndim != 1:
        raise BadParamError(f"a parameter of the channels has shape {parameter.shape}; [C] is needed")
    (channels,), (stride,) = parameter.shape, parameter.strides
    return TensorDescriptor(parameter.dtype, (1, channels, *(1,) * (ndim - 2)), (channels, stride, *(1,) * (ndim - 2)))


def as_rows(tensor: TensorDescriptor) -> TensorDescriptor | None:
    """[..., C] as [M, C] in the same memory; None where its strides do not allow it."""
    *outer, (_, column) = zip(tensor.shape, tensor.strides, strict=True)
    outer = [axis for axis in outer if axis[0] != 1]
    nested = all(stride == extent * step for (_, stride), (extent, step) in pairwise(outer))
    if not nested and tensor.size:
        return None
    extents = (math.prod(tensor.shape[:-1]), tensor.shape[-1])
    return TensorDescriptor(tensor.dtype, extents, (outer[-1][1] if outer else max(tensor.extent, 1), column))


def with_leading(tensor: TensorDescriptor, ndim: int) -> TensorDescriptor:
    """The same memory with extents of 1 in front, so that there are `ndim` dimensions; itself where there are as many already."""
    missing = ndim - tensor.ndim
    if missing <= 0:
        return tensor
    shape, strides = (*(1,) * missing, *tensor.shape), (*(max(tensor.extent, 1),) * missing, *tensor.strides)
    return TensorDescriptor(tensor.dtype, shape, strides)


def without_leading(tensor: TensorDescriptor) -> TensorDescriptor:
    """The same memory without the first dimension, whose extent is 1."""
    return TensorDescriptor(tensor.dtype, tensor.shape[1:], tensor.strides[1:])
