"""Shapes, memory formats and element types of what PyTorch's functions return, and whether they want gradients.

What does not need PyTorch is `dnncore.formats`', and is found here beside the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.formats import along_channels, as_rows, is_channels_last, new, relaid
from dnncore.torch.operation import Behind

__all__ = [
    "along_channels",
    "as_rows",
    "autocast",
    "autocast_for",
    "is_channels_last",
    "like",
    "maybe_autocast",
    "mean_and_inv_std",
    "new",
    "parameters_for",
    "relaid",
    "statistics",
    "statistics_dtype",
    "vector",
    "wants_gradient",
    "widened",
]


_grad_is_enabled, _is_transformed = torch.is_grad_enabled, torch._C._are_functorch_transforms_active


def wants_gradient(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd is to be told of an operation on these tensors: for a gradient, or to refuse its forward mode.

    Raises:
        RuntimeError: it would be told under a transform of `torch.func`, which takes no function that fills in a context.
    """
    if forward_ad._current_level < 0:
        if not _grad_is_enabled():
            return False
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                break
        else:
            return False
    if _is_transformed():
        raise RuntimeError(
            "dnncore.torch's functions do not run under transforms of torch.func; call backward() or torch.autograd.grad instead"
        )
    return True


def like(reference: TensorDescriptor) -> TensorDescriptor:
    """What element by element returns: the same shape, dimensions in the same order in memory, without gaps."""
    original = torch.empty_strided(reference.shape, reference.strides, device="meta")
    return TensorDescriptor(reference.dtype, reference.shape, torch.empty_like(original).stride())


def vector(dtype: DType, channels: int) -> TensorDescriptor:
    """[C]."""
    return TensorDescriptor(dtype, (channels,), (1,))


def statistics(each: TensorDescriptor) -> TensorDescriptor:
    """A mean and 1 / standard deviation, both without gaps, in one tensor [2, ...]: the second begins at a multiple of 16 bytes."""
    return TensorDescriptor.packed((2, -(-each.size // 4) * 4), each.dtype)


def mean_and_inv_std(both: TensorDescriptor, place: int) -> tuple[int, Behind]:
    """Where they are in `statistics` at a place."""
    return place, Behind(place, both.strides[0] * both.dtype.itemsize)


def statistics_dtype(x: torch.Tensor) -> torch.dtype:
    """The compute type: what the statistics of a normalisation are in."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


_FLOAT32, _FLOAT64 = torch.float32, torch.float64


def parameters_for(x: torch.Tensor, *parameters: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Parameters as a normalisation of x takes them: in the dtype of x or in the compute type, to which any other is converted.

    The gradient of one that is converted comes back in its own dtype.
    """
    dtype = x.dtype
    compute = dtype if dtype is _FLOAT64 else _FLOAT32
    for parameter in parameters:
        if parameter is not None:
            its = parameter.dtype
            if its is not compute and its is not dtype:
                return tuple(p if p is None or p.dtype in (dtype, compute) else p.to(compute) for p in parameters)
    return parameters


maybe_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether `torch.autocast` is on for any device: quick to ask, in front of what takes longer."""


_autocast_is_enabled, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype


def autocast(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """x as `torch.autocast` hands it to its matrix products, in its dtype, and whether it casts their parameters, too.

    These are cast by the operation itself, as `Draft.parameter` does: it costs a launch each, forward and backward, and neither a
    tensor that autograd is told of nor a node of its graph.
    """
    dtype = autocast_for(x)
    if dtype is None:
        return x, False
    if x.dtype is not dtype and _can_be_cast(x):
        return x.to(dtype), True
    return x, True


def autocast_for(x: torch.Tensor) -> torch.dtype | None:
    """The dtype of `torch.autocast` on the device of x; None where it is not on."""
    device = "cuda" if x.is_cuda else "cpu"
    return _autocast_dtype(device) if _autocast_is_enabled(device) else None


def widened(x: torch.Tensor) -> torch.Tensor:
    """x as `torch.autocast` hands it to its softmax and losses on CUDA: in float32. With 16 bits a scaled loss would overflow."""
    return x.float() if _autocast_is_on(x) and _can_be_cast(x) else x


def _autocast_is_on(x: torch.Tensor) -> bool:
    if not maybe_autocast():
        return False
    on: bool = torch.is_autocast_enabled("cuda") if x.is_cuda else x.is_cpu and torch.is_autocast_enabled("cpu")
    return on


def _can_be_cast(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64
