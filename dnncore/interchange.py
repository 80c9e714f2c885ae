"""What other libraries made, for a handle to use: their memory as blocks of its device, their streams as its own.

How they describe it is in `dlpack` and `cuda_array`. What other libraries use of ours, `Tensor` gives them itself.
"""

from __future__ import annotations

from typing import Any, Protocol

from dnncore import cuda_array, dlpack
from dnncore.backend import Device, Memory, Stream
from dnncore.dlpack import Borrowed
from dnncore.errors import BadParamError

__all__ = ["SupportsCudaStream", "borrow_cuda_array", "borrow_dlpack", "open_stream"]


class SupportsCudaStream(Protocol):
    """A stream of another library that says its handle, as those of PyTorch, CuPy and cuda.core do."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """(0, CUstream)."""
        ...


def open_stream(device: Device, stream: int | SupportsCudaStream | None) -> Stream:
    """A stream of the device's own for None, else another library's, which stays that library's to destroy.

    Raises:
        BadParamError: it is not this device's.
    """
    if stream is None:
        return device.create_stream()
    return device.wrap_stream(stream if isinstance(stream, int) else stream.__cuda_stream__()[1])


def borrow_dlpack(device: Device, stream: Stream, array: Any) -> tuple[Memory, Borrowed]:
    """The memory of what has `__dlpack__`, whose producer has made our stream wait for its work.

    Raises:
        BadParamError: it is elsewhere, or not what a tensor of ours can be.
    """
    borrowed = dlpack.borrow(array, device.dlpack_device, stream.handle)
    return _wrapped(device, borrowed), borrowed


def borrow_cuda_array(device: Device, stream: Stream, array: Any) -> tuple[Memory, Borrowed]:
    """The memory of what has `__cuda_array_interface__`; our stream waits for the one that it names.

    Raises:
        BadParamError: the device is not a CUDA device, or the array is elsewhere, or not what a tensor of ours can be.
    """
    if stream.handle is None:
        raise BadParamError(f"a CUDA array cannot be shared with {device.info.name}; use a handle of its device")
    borrowed, producer = cuda_array.borrow(array)
    memory = _wrapped(device, borrowed)
    try:
        if producer is not None:
            stream.follow(producer)
    except BaseException:
        memory.close()
        raise
    return memory, borrowed


def _wrapped(device: Device, borrowed: Borrowed) -> Memory:
    try:
        return device.wrap_memory(borrowed)
    except BaseException:
        borrowed.release()
        raise
