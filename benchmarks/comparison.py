"""What benchmarks beside PyTorch share: the stream, how far results are apart, and memory that goes back."""

from __future__ import annotations

import gc
import math

import torch

__all__ = ["DEFAULT_STREAM", "difference", "release"]

DEFAULT_STREAM = 0
"""PyTorch's, and what handles here enqueue on."""

_PIECES = 16


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Norm of the difference over the norm of theirs, in float64 and so piece by piece; NaN where an element is."""
    theirs = theirs.reshape(ours.shape)
    parts = zip(ours.tensor_split(_PIECES), theirs.tensor_split(_PIECES), strict=True)
    apart = total = 0.0
    for mine, yours in parts:
        apart += float((mine.double() - yours.double()).square().sum())
        total += float(yours.double().square().sum())
    return math.sqrt(apart / total) if total else math.sqrt(apart)


def release() -> None:
    """Give back what the last measurement held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
