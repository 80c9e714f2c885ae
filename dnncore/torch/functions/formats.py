"""Shapes, memory formats and element types of what PyTorch's functions return."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["along_channels", "new", "statistics_dtype"]


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
