"""Tensors: a descriptor over device memory, tied to the handle whose stream orders the work on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore import cuda_array, dlpack
from dnncore.backend import Address, Memory
from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import whole
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ClosedError

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

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
        base: The tensor that this one is a view of, which it keeps from being collected.
        read_only: Whether operations and `assign` refuse to write it, as its producer asks.
    """

    def __init__(
        self,
        handle: Handle,
        descriptor: TensorDescriptor,
        memory: Memory,
        offset_bytes: int = 0,
        *,
        owned: bool = True,
        read_only: bool = False,
        base: Tensor | None = None,
    ) -> None:
        nbytes = descriptor.nbytes
        if offset_bytes < 0 or offset_bytes + nbytes > memory.nbytes:
            raise BadParamError(
                f"{descriptor} at byte {offset_bytes} ends at {offset_bytes + nbytes}, "
                f"the memory has {memory.nbytes} bytes"
            )
        if offset_bytes % descriptor.dtype.itemsize:
            raise BadParamError(
                f"{descriptor} at byte {offset_bytes} is not aligned: the offset must be a multiple of "
                f"{descriptor.dtype.itemsize} bytes"
            )
        self.handle = handle
        self.descriptor = descriptor
        self.nbytes = nbytes  # from the first element to the end of the last
        self.read_only = read_only
        self._memory: Memory | None = memory
        self._pointer = memory.pointer(offset_bytes)
        self._offset_bytes = offset_bytes
        self._owned = owned
        self._base = base

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.descriptor.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.descriptor.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.descriptor.ndim

    @property
    def size(self) -> int:
        """Number of elements, as NumPy counts them."""
        return self.descriptor.size

    @property
    def memory(self) -> Memory:
        """The block; errors as `pointer`."""
        return self._open()

    @property
    def pointer(self) -> int:
        """Where the first element lies, as a number."""
        return self._open().pointer(self._offset_bytes)

    def locate(self) -> int:
        """`pointer`, for a handle that knows that its owner calls."""
        memory = self._memory
        return self._pointer if memory is not None and not memory.closed else self.pointer

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
            BadParamError: the descriptor reaches beyond the memory, its elements would not be aligned, or the offset is no integer.
        """
        offset = self._offset_bytes + whole(offset_elements, "offset_elements") * self.descriptor.dtype.itemsize
        memory = self._open()
        return Tensor(self.handle, descriptor, memory, offset, owned=False, read_only=self.read_only, base=self)

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
        """Wait for the stream and copy to the host, as a row-major array.

        Raises:
            BadParamError: the handle is recording, so that what would be read has yet to be computed.
        """
        self._open()
        self.handle.check_not_recording("a copy to the host")
        return np.asarray(self._laid_over(self._download()), order="C")

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """`numpy()`, for `np.asarray(tensor)` and its like.

        Raises:
            ValueError: the caller wants no copy; `np.from_dlpack` makes none, on "cpu".
        """
        if copy is False:
            raise ValueError(f"{self} cannot be given to NumPy without a copy; numpy.from_dlpack() shares host memory")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def assign(self, array: np.ndarray) -> None:
        """Overwrite with an array of the same shape and dtype; gaps between elements keep what they hold. Waits for the copy.

        Raises:
            BadParamError: shape or dtype differ, the tensor is read-only, or the handle is recording.
        """
        self.handle.check_not_recording("an assignment from the host")
        self.check_writable()
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

    def check_writable(self) -> None:
        """Refuse a tensor whose producer forbids writing.

        Raises:
            BadParamError: it is read-only.
        """
        if self.read_only:
            raise BadParamError(
                f"{self} is read-only, as the library says that it came from; write to a tensor of your own"
            )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3: for a consumer that uses the memory until this tensor is closed, not longer.

        Raises:
            AttributeError: this is not a CUDA device, or the dtype is bfloat16.
        """
        stream = self.handle.stream.handle
        if stream is None:
            raise AttributeError(f"{self} is in host memory; numpy.from_dlpack() shares it, numpy() copies it")
        return cuda_array.interface(self.pointer, self.descriptor, read_only=self.read_only, stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(DLPack device type, index): (1, 0) for "cpu", (2, N) for "cuda:N"."""
        kind, index = self.handle.device.dlpack_device
        return int(kind), index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Share the memory with another library, for `torch.from_dlpack(tensor)` and its like. Only the owner may call it.

        The consumer keeps the memory: `close` gives it back once the consumer has let go of it, in whichever thread.

        Args:
            stream: The consumer's CUstream, which is made to wait for the handle's; 1 and None stand for the legacy default stream,
                2 for the thread's default stream, -1 for no waiting.
            max_version: The newest DLPack that the consumer understands; from 1.0 on the capsule is versioned.
            dl_device: Where the consumer wants it: here, or (1, 0) for a copy in host memory.
            copy: True for a copy of its own, on the same device unless `dl_device` says otherwise; False for none.

        Raises:
            BufferError: it cannot be shared like that; the message says why.
        """
        here = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != here:
            if tuple(dl_device) != dlpack.CPU or copy is False:
                raise BufferError(
                    f"{self} is DLPack device {here}; it cannot be given for {tuple(dl_device)} "
                    f"{'without a copy' if copy is False else 'but only for (1, 0), the host'}"
                )
            return self._host_capsule(max_version)
        memory, offset = (self._copied(), 0) if copy else (self._open(), self._offset_bytes)
        try:
            self._let_follow(stream)
            pointer, release = memory.pointer(offset), memory.hold()
        finally:
            if copy:
                memory.close()  # from here on the consumer's alone
        read_only = self.read_only and not copy
        return self._capsule(pointer, release, here, max_version, read_only=read_only, copied=bool(copy))

    def _capsule(
        self,
        pointer: int,
        release: Callable[[], object],
        device: tuple[int, int],
        max_version: tuple[int, int] | None,
        *,
        read_only: bool,
        copied: bool,
    ) -> CapsuleType:
        shape, strides, dtype = self.descriptor.shape, self.descriptor.byte_strides, self.descriptor.dtype
        array = dlpack.laid_over(pointer, shape, strides, dtype.itemsize, read_only=read_only, release=release)
        return dlpack.capsule(array, dtype, device, max_version, copied=copied)

    def _host_capsule(self, max_version: tuple[int, int] | None) -> CapsuleType:
        raw = self._download()
        pointer, release = int(raw.ctypes.data), [raw].clear
        return self._capsule(pointer, release, dlpack.CPU, max_version, read_only=False, copied=True)

    def _copied(self) -> Memory:
        device, source, nbytes = self.handle.device, self.address, self.descriptor.nbytes
        memory = device.allocate(max(nbytes, 1))
        try:
            device.copy(self.handle.stream, memory.at(0), source, nbytes)
        except BaseException:
            memory.close()
            raise
        return memory

    def _let_follow(self, stream: int | None) -> None:
        """Order a consumer's stream after the handle's, in the numbers of the Python array API standard."""
        ours = self.handle.stream
        if stream == -1 or (stream is None and ours.handle is None):
            return
        if stream == 0 or (stream is not None and stream < -1):
            raise BufferError(
                f"stream {stream} names none: 1 is the legacy default stream, 2 the thread's, -1 asks for no waiting"
            )
        ours.precede(dlpack.LEGACY_DEFAULT_STREAM if stream is None else stream)

    def close(self) -> None:
        """Wait for the work that may use it, then give the memory back; a second call does nothing.

        Memory that another library holds (`__dlpack__`) is given back when that lets go of it; memory that came from another
        library (`Handle.from_dlpack`) is given back to it.
        """
        if self._memory is not None and self._owned:
            self.handle.release(self._memory)  # which refuses a foreign thread, and then nothing has changed
        self._memory = None

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._memory is None else self.handle.info.name
        return f"Tensor({self.descriptor} on {state})"
