"""What it costs to read images whose rows do not lie in memory as rows."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.figures import DeviceFigures

__all__ = ["strided_seconds"]

_SECTOR_BYTES = 32
_OF_MEMORY_RATE = 0.9014
"""Fitted to fp16 in NHWC on an H200: each element takes most of a sector, whose others the L2 cache partly keeps."""


def strided_seconds(tensor: TensorDescriptor, figures: DeviceFigures) -> float:
    """Time that a transform of images takes beside its usual one; 0 where neighbours in a row are neighbours in memory."""
    if tensor.strides[-1] == 1:
        return 0.0
    return tensor.size * _SECTOR_BYTES / (figures.bytes_per_second * _OF_MEMORY_RATE)
