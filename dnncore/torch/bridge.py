"""From PyTorch's tensors to our launches: descriptors, addresses, and a handle for each thread and stream.

PyTorch's allocator hands memory out in the order of the current stream; our work is enqueued on that same stream. So a tensor
may be freed as soon as its launch is enqueued.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import torch

from dnncore.backend import Address
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.problems import Problem

__all__ = ["current_handle", "describe", "launch"]

_DTYPES = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.int8: DType.INT8,
    torch.int32: DType.INT32,
}


class _Handles(threading.local):
    """The calling thread's handles, by device and stream. They are given back when it ends; PyTorch's autograd threads never do."""

    def __init__(self) -> None:
        self.opened: dict[tuple[str, int | None], Handle] = {}
        self.life = _Life()
        finalizer = weakref.finalize(self.life, _abandon, self.opened, os.getpid())
        finalizer.atexit = False  # the context gives everything back then


class _Life:
    """Lasts as long as the thread in whose storage it is."""


def _abandon(opened: dict[tuple[str, int | None], Handle], process: int) -> None:
    if os.getpid() != process:
        return  # a forked child has lost the parent's other threads; what they had is the parent's still
    for handle in opened.values():
        handle.abandon()
    opened.clear()


_handles = _Handles()


def current_handle(device: torch.device) -> Handle:
    """The calling thread's handle for a device: on CUDA for PyTorch's current stream there.

    Raises:
        BadParamError: a device that is neither the CPU nor CUDA.
    """
    if device.type == "cpu":
        key: tuple[str, int | None] = ("cpu", None)
    elif device.type == "cuda":
        stream = torch.cuda.current_stream(device)
        key = (f"cuda:{stream.device.index}", stream.cuda_stream)
    else:
        raise BadParamError(f"tensors on {device} are not supported; move them to the CPU or to a CUDA device")
    handle = _handles.opened.get(key)
    if handle is None:
        handle = _handles.opened[key] = Handle(key[0], stream=key[1])
    return handle


def describe(tensor: torch.Tensor) -> TensorDescriptor:
    """Element type, extents and strides.

    Raises:
        BadParamError: a dtype that is not ours, or more than 8 dimensions.
    """
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise BadParamError(f"dtype {tensor.dtype} is not supported; use one of {', '.join(map(str, _DTYPES))}")
    return TensorDescriptor(dtype, tuple(tensor.shape), tensor.stride())


def launch(
    problem: Problem,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    alpha: float = 1.0,
    beta: float = 0.0,
) -> None:
    """Enqueue outputs[0] = alpha * operation(inputs) + beta * outputs[0] on PyTorch's current stream.

    Raises:
        BadParamError: the tensors are on different devices.
        NotSupportedError: nothing fits.
    """
    device = outputs[0].device
    for tensor in (*inputs, *outputs):
        if tensor.device != device:
            raise BadParamError(f"tensors are on {tensor.device} and on {device}; all must be on one device")
    handle = current_handle(device)
    address = _bytes if device.type == "cpu" else torch.Tensor.data_ptr
    handle.launch(handle.plan(problem), alpha, [address(t) for t in inputs], beta, [address(t) for t in outputs])


def _bytes(tensor: torch.Tensor) -> Address:
    """The bytes from the first element of a CPU tensor to the end of the last."""
    extent = describe(tensor).extent
    raw: np.ndarray = tensor.detach().as_strided((extent,), (1,)).view(torch.uint8).numpy()
    return raw
