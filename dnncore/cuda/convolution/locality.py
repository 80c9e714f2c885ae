"""What it costs to read images whose rows do not lie in memory as rows."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor

__all__ = ["strided_seconds"]

_ELEMENTS_PER_SECOND = 120e9
"""Fitted to fp16 in NHWC on an H200: each element takes most of a sector of 32 bytes, whose others the L2 cache partly keeps."""


def strided_seconds(tensor: TensorDescriptor) -> float:
    """Time that a transform of images takes beside its usual one; 0 where neighbours in a row are neighbours in memory."""
    return 0.0 if tensor.strides[-1] == 1 else tensor.size / _ELEMENTS_PER_SECOND
