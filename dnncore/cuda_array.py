"""The CUDA Array Interface, version 3: a dictionary that says where an array is on a GPU and which stream it is ready on.

Source: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.descriptors import TensorDescriptor
from dnncore.dlpack import Borrowed
from dnncore.dtypes import DType
from dnncore.errors import BadParamError

__all__ = ["borrow", "interface"]


def interface(pointer: int, descriptor: TensorDescriptor, *, read_only: bool, stream: int) -> dict[str, Any]:
    """Describe memory of ours.

    Raises:
        AttributeError: its dtype has no name there (bfloat16).
    """
    if descriptor.dtype is DType.BFLOAT16:
        raise AttributeError("the CUDA array interface has no bfloat16; use DLPack")
    return {
        "version": 3,
        "shape": descriptor.shape,
        "typestr": descriptor.dtype.numpy.str,
        "data": (pointer if descriptor.size else 0, read_only),
        "strides": None if descriptor.is_row_major else descriptor.byte_strides,
        "stream": stream,
    }


def borrow(array: Any) -> tuple[Borrowed, int | None]:
    """Read what another library says of its memory; the array is kept until the memory is released.

    Returns:
        The memory, and the stream that has to be waited for, if any.

    Raises:
        BadParamError: there is no such interface, or it says something that a tensor of ours cannot be.
    """
    found = getattr(array, "__cuda_array_interface__", None)
    if not isinstance(found, dict):
        raise BadParamError(
            f"{type(array).__name__} has no __cuda_array_interface__; is it in host memory? upload() takes that"
        )
    if found.get("mask") is not None:
        raise BadParamError("the array has a mask; fill in what is masked first")
    stream = found.get("stream")
    if stream == 0:
        raise BadParamError(
            "__cuda_array_interface__ names stream 0, which is ambiguous: 1 is the legacy default, 2 a thread's"
        )
    descriptor = _descriptor(found)
    pointer, read_only = found["data"]
    keep = [array]
    return Borrowed(int(pointer or 0), descriptor, None, bool(read_only), keep.clear), stream


def _descriptor(found: dict[str, Any]) -> TensorDescriptor:
    missing = {"typestr", "shape", "data"} - found.keys()
    if missing:
        raise BadParamError(f"__cuda_array_interface__ has no {', '.join(sorted(missing))}")
    dtype, shape, strides = np.dtype(found["typestr"]), tuple(found["shape"]), found.get("strides")
    if not dtype.isnative:
        raise BadParamError(
            f"the array's typestr {found['typestr']!r} is of the other byte order; swap its bytes first"
        )
    element = DType.of(dtype)
    if strides is None:
        return TensorDescriptor.packed(shape, element)
    if any(stride % element.itemsize for stride in strides):
        raise BadParamError(f"strides of {tuple(strides)} bytes are not whole elements of {element.itemsize} bytes")
    return TensorDescriptor(element, shape, tuple(stride // element.itemsize for stride in strides))
