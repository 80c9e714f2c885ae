"""Tensors: a descriptor over device memory, tied to the handle whose stream orders the work on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dnncore.backend import Address, Memory
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError, ClosedError

if TYPE_CHECKING:
    from dnncore.handle import Handle

__all__ = ["Tensor"]


class Tensor:
    """Device memory seen through a descriptor; made by `Handle.tensor`, `Handle.upload` or `view`. Owned by one thread; checked.

    Args:
        handle: Its owner.
        descriptor: What to see.
        memory: The block; a view shares that of the tensor it was made from.
        offset_bytes: Where the first element lies in the block.
        owned: Whether `close` gives the block back (a view does not).
    """

    def __init__(
        self, handle: Handle, descriptor: TensorDescriptor, memory: Memory, offset_bytes: int = 0, *, owned: bool = True
    ) -> None:
        if offset_bytes < 0 or offset_bytes + descriptor.nbytes > memory.nbytes:
            raise BadParamError(
                f"{descriptor} at byte {offset_bytes} ends at {offset_bytes + descriptor.nbytes}, "
                f"the memory has {memory.nbytes} bytes"
            )
        if offset_bytes % descriptor.dtype.itemsize:
            raise BadParamError(
                f"{descriptor} at byte {offset_bytes} is not aligned: the offset must be a multiple of "
                f"{descriptor.dtype.itemsize} bytes"
            )
        self.handle = handle
        self.descriptor = descriptor
        self._memory: Memory | None = memory
        self._offset_bytes = offset_bytes
        self._owned = owned

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.descriptor.shape

    @property
    def address(self) -> Address:
        """Where the first element lies, for a backend's launches."""
        return self._open().at(self._offset_bytes)

    def _open(self) -> Memory:
        self.handle.check_owner()
        if self._memory is None:
            raise ClosedError(f"tensor {self.descriptor} was closed")
        return self._memory

    def view(self, descriptor: TensorDescriptor, offset_elements: int = 0) -> Tensor:
        """See part of the same memory through another descriptor; valid as long as this tensor is.

        Raises:
            BadParamError: the descriptor reaches beyond the memory, or its elements would not be aligned.
        """
        offset = self._offset_bytes + offset_elements * self.descriptor.dtype.itemsize
        return Tensor(self.handle, descriptor, self._open(), offset, owned=False)

    def reshape(self, *shape: int) -> Tensor:
        """View a row-major tensor with another shape of the same size."""
        target = TensorDescriptor.packed(shape, self.descriptor.dtype)
        if not self.descriptor.is_row_major or target.size != self.descriptor.size:
            raise BadParamError(f"{self.descriptor} cannot be seen as {shape}: not row-major, or another size")
        return self.view(target)

    def _download(self) -> np.ndarray:
        """The bytes from the first element to the last, once everything enqueued has run."""
        raw = np.empty(self.descriptor.nbytes, np.uint8)
        device, stream = self.handle.device, self.handle.stream
        if raw.size:
            device.copy_to_host(stream, raw, self.address)
        stream.synchronize()
        return raw

    def _laid_over(self, raw: np.ndarray) -> np.ndarray:
        descriptor = self.descriptor
        flat = raw.view(descriptor.dtype.numpy)
        return np.lib.stride_tricks.as_strided(flat, descriptor.shape, descriptor.byte_strides)

    def numpy(self) -> np.ndarray:
        """Wait for the stream and copy to the host, as a row-major array."""
        self._open()
        return np.ascontiguousarray(self._laid_over(self._download()))

    def assign(self, array: np.ndarray) -> None:
        """Overwrite with an array of the same shape and dtype; gaps between elements keep what they hold. Waits for the copy.

        Raises:
            BadParamError: shape or dtype differ.
        """
        array = np.asarray(array)
        descriptor = self.descriptor
        if array.shape != descriptor.shape or array.dtype != descriptor.dtype.numpy:
            raise BadParamError(f"array is {array.dtype}{list(array.shape)}, tensor is {descriptor}")
        if descriptor.overlaps:
            raise BadParamError(f"{descriptor} cannot be written: its strides let elements overlap")
        if not descriptor.size:
            return
        raw = np.empty(descriptor.nbytes, np.uint8) if descriptor.is_packed else self._download()
        self._laid_over(raw)[...] = array
        device, stream = self.handle.device, self.handle.stream
        device.copy_to_device(stream, self.address, raw)
        stream.synchronize()

    def close(self) -> None:
        """Wait for the work that may use it, then give the memory back; a second call does nothing."""
        memory, self._memory = self._memory, None
        if memory is not None and self._owned:
            self.handle.release(memory)

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._memory is None else self.handle.info.name
        return f"Tensor({self.descriptor} on {state})"
