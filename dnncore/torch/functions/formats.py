"""Shapes, memory formats and element types of what PyTorch's functions return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["along_channels", "autocast", "in_statistics_dtype", "new", "statistics_dtype", "widened"]


def new(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Uninitialised, in the memory format of `like`."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    chosen = torch.contiguous_format
    last = formats.get(like.dim()) if len(shape) == like.dim() else None
    if last is not None and not like.is_contiguous() and like.is_contiguous(memory_format=last):
        chosen = last
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=chosen)


def along_channels(parameter: torch.Tensor, ndim: int) -> torch.Tensor:
    """[C] as [1, C, 1, ...]."""
    return parameter.reshape(1, -1, *(1,) * (ndim - 2))


def statistics_dtype(x: torch.Tensor) -> torch.dtype:
    """The compute type: what statistics, scales and biases are in."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def in_statistics_dtype(x: torch.Tensor, parameter: torch.Tensor | None) -> torch.Tensor | None:
    """A parameter of a normalisation of x in the compute type; its gradient comes back in its own."""
    return None if parameter is None else parameter.to(statistics_dtype(x))


def autocast(x: torch.Tensor, *parameters: torch.Tensor | None) -> tuple[Any, ...]:
    """x and parameters as `torch.autocast` hands them to its matrix products: in its dtype where it is on for x's device."""
    tensors = (x, *parameters)
    if not _autocast_is_on(x):
        return tensors
    dtype = torch.get_autocast_dtype(x.device.type)
    return tuple(t.to(dtype) if t is not None and _can_be_cast(t) else t for t in tensors)


def widened(x: torch.Tensor) -> torch.Tensor:
    """x as `torch.autocast` hands it to its softmax and losses on CUDA: in float32. With 16 bits a scaled loss would overflow."""
    return x.float() if _autocast_is_on(x) and _can_be_cast(x) else x


def _autocast_is_on(x: torch.Tensor) -> bool:
    kind = x.device.type
    return bool(torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind))


def _can_be_cast(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64
