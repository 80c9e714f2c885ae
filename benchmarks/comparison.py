"""Ours and PyTorch's on the same memory: its tensors, with the strides of our descriptors, on the same stream.

Both sides of a ratio come from one run; PyTorch is only imported where a GPU is measured.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.timing import milliseconds
from dnncore import Handle, Preference, TensorDescriptor
from dnncore.plan import rank
from dnncore.problems import Problem

__all__ = ["DEFAULT_STREAM", "algorithms", "difference", "empty", "launcher", "noise", "release", "time_ms"]

DEFAULT_STREAM = 0
"""PyTorch's, and what handles here enqueue on."""

_PIECES = 16


def empty(descriptor: TensorDescriptor) -> torch.Tensor:
    """Memory for a descriptor, on PyTorch's current device."""
    dtype = getattr(torch, descriptor.dtype.value)
    return torch.empty_strided(descriptor.shape, descriptor.strides, dtype=dtype, device="cuda")


def noise(descriptor: TensorDescriptor, seed: int) -> torch.Tensor:
    """Normally distributed elements; zeros where they are integers."""
    tensor, generator = empty(descriptor), torch.Generator("cuda").manual_seed(seed)
    return tensor.normal_(generator=generator) if descriptor.dtype.is_floating else tensor.zero_()


def algorithms(handle: Handle, problem: Problem) -> Iterator[str]:
    """Names of what can solve a problem, in the order in which they are chosen."""
    for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST):
        if algorithm.status is None:
            yield algorithm.name


def launcher(
    handle: Handle,
    problem: Problem,
    algorithm: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    beta: float = 0.0,
) -> Callable[[], None]:
    """One launch of ours on tensors of PyTorch's, which must outlive it."""
    plan = handle.plan(problem, algorithm=algorithm)
    sources, results = [tensor.data_ptr() for tensor in inputs], [tensor.data_ptr() for tensor in outputs]
    return lambda: handle.launch(plan, 1.0, sources, beta, results)


def time_ms(launch: Callable[[], Any]) -> float:
    """Milliseconds a launch."""
    return milliseconds(launch, torch.cuda.synchronize)


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Norm of the difference over the norm of theirs, in float64 and so piece by piece."""
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
    torch.cuda.empty_cache()
