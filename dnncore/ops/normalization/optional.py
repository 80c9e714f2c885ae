"""Tensors that may be missing."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.tensor import Tensor

__all__ = ["described", "there"]


def described(tensor: Tensor | None) -> TensorDescriptor | None:
    """What a tensor looks like, None where it is missing."""
    return None if tensor is None else tensor.descriptor


def there(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Those that are not missing."""
    return tuple(tensor for tensor in tensors if tensor is not None)
