"""Another library, as far as interoperability needs one: memory and streams by libcuda alone, and both protocols by hand.

It shares no code with `dnncore.dlpack` and `dnncore.cuda`, and works with the emulated driver and with a real one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Array", "Capsule", "Device", "open_capsule"]

CODES = {"i": 0, "u": 1, "f": 2, "c": 5}
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Unversioned(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


NAMES = {b"dltensor": Unversioned, b"dltensor_versioned": Versioned}
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


@dataclass
class Capsule:
    """What a consumer knows of a capsule that it has taken."""

    name: str
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    flags: int
    managed: Any = field(repr=False)

    def delete(self) -> None:
        self.managed.deleter(ctypes.addressof(self.managed))


def open_capsule(made: object) -> Capsule:
    name = _name(made)
    managed = NAMES[name].from_address(_pointer(made, name))
    _rename(made, USED[name])
    tensor = managed.tensor
    return Capsule(
        name=name.decode(),
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,  # None: row-major
        device=(tensor.device_type, tensor.device_id),
        dtype=(tensor.code, tensor.bits, tensor.lanes),
        flags=managed.flags if isinstance(managed, Versioned) else 0,
        managed=managed,
    )


class Device:
    """libcuda, with the primary context of one device."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        self.context = ctypes.c_void_p()
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), index)
        self._kept: list[object] = []

    def check(self, name: str, *arguments: object) -> None:
        status = getattr(self.cuda, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    @contextmanager
    def current(self) -> Iterator[None]:
        self.check("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self.current():
            self.check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def knows(self, pointer: int) -> bool:
        """Whether memory is allocated there."""
        kind = ctypes.c_uint()
        with self.current():
            return bool(self.cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(pointer)) == 0)

    def create_stream(self) -> int:
        stream = ctypes.c_void_p()
        with self.current():
            self.check("cuStreamCreate", ctypes.byref(stream), 1)
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        with self.current():
            self.check("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def synchronize(self, stream: int) -> None:
        with self.current():
            self.check("cuStreamSynchronize", ctypes.c_void_p(stream))

    def is_idle(self, stream: int) -> bool:
        with self.current():
            return bool(self.cuda.cuStreamQuery(ctypes.c_void_p(stream)) == 0)

    def allocate(self, nbytes: int) -> int:
        pointer = ctypes.c_uint64()
        with self.current():
            self.check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        with self.current():
            self.check("cuMemFree_v2", ctypes.c_uint64(pointer))

    def read(self, pointer: int, count: int, dtype: Any, stream: int) -> np.ndarray:
        array = np.empty(count, dtype)
        with self.current():
            self.check(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_uint64(pointer),
                ctypes.c_size_t(array.nbytes),
                ctypes.c_void_p(stream),
            )
        self.synchronize(stream)
        return array

    def write(self, pointer: int, array: np.ndarray, stream: int) -> None:
        """Enqueue a copy from an array that is kept."""
        self._kept.append(array)
        with self.current():
            self.check(
                "cuMemcpyHtoDAsync_v2",
                ctypes.c_uint64(pointer),
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_size_t(array.nbytes),
                ctypes.c_void_p(stream),
            )

    @contextmanager
    def blocked(self, stream: int) -> Iterator[threading.Event]:
        """Let a stream stand still until the event is set, at the latest at the block's end."""
        gate = threading.Event()

        def wait(_: int) -> None:
            gate.wait(60)

        function = HOST_FUNCTION(wait)
        self._kept.append(function)
        with self.current():
            self.check("cuLaunchHostFunc", ctypes.c_void_p(stream), function, None)
        try:
            yield gate
        finally:
            gate.set()
            self.synchronize(stream)


_exported: list[object] = []
"""What consumers use until they have called a deleter, which may be after the array itself is gone: kept for good."""


class Array:
    """An array of that library, on the CPU (device None) or a CUDA device, with either protocol.

    Args:
        values: Contents, which may have any strides; copied to a device, used as they are on the CPU.
        device: Where.
        stream: On which the contents are written.
        versioned: Whether it speaks DLPack 1.0.
        read_only: What it says of itself.
        major: Version of the DLPack that it speaks.
        place: Its DLPack device, if that is to be another than one would think.
    """

    def __init__(
        self,
        values: np.ndarray,
        device: Device | None = None,
        stream: int = 1,
        *,
        versioned: bool = True,
        read_only: bool = False,
        major: int = 1,
        place: tuple[int, int] | None = None,
    ) -> None:
        self.device, self.stream, self.versioned, self.read_only, self.major = (
            device,
            stream,
            versioned,
            read_only,
            major,
        )
        self.shape, self.strides, self.dtype = values.shape, values.strides, values.dtype
        self.place = place or ((1, 0) if device is None else (2, device.index))
        self.deleted = 0
        self.asked: list[int | None] = []
        self._values = values
        whole = values if values.base is None else values.base
        assert isinstance(whole, np.ndarray)
        if device is None:
            self.pointer = values.ctypes.data
        else:
            self._block = device.allocate(max(whole.nbytes, 1))
            self.pointer = self._block + values.ctypes.data - whole.ctypes.data
            if whole.nbytes:
                device.write(self._block, whole, stream)

    def free(self) -> None:
        if self.device is not None:
            self.device.free(self._block)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, *, stream: int | None = None, **more: object) -> object:
        if not self.versioned and more:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.asked.append(stream)
        if self.device is not None and stream not in (None, -1):
            self._let_wait(stream)
        ndim = len(self.shape)
        itemsize = self.dtype.itemsize
        shape = (ctypes.c_int64 * max(ndim, 1))(*self.shape)
        strides = (ctypes.c_int64 * max(ndim, 1))(*(step // itemsize for step in self.strides))
        tensor = DLTensor(
            self.pointer,
            *self.__dlpack_device__(),
            ndim,
            CODES[self.dtype.kind],
            8 * itemsize,
            1,
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
            0,
        )
        deleter = DELETER(self._delete)
        managed: Unversioned | Versioned = (
            Versioned(self.major, 0, None, deleter, int(self.read_only), tensor)
            if self.versioned
            else Unversioned(tensor, None, deleter)
        )
        _exported.append((shape, strides, managed, deleter))
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        made: object = _new(ctypes.addressof(managed), name, None)
        _exported.append(name)
        return made

    def _delete(self, _: int) -> None:
        self.deleted += 1

    def _let_wait(self, stream: int | None) -> None:
        assert self.device is not None
        event = ctypes.c_void_p()
        with self.device.current():
            self.device.check("cuEventCreate", ctypes.byref(event), 2)
            self.device.check("cuEventRecord", event, ctypes.c_void_p(self.stream))
            self.device.check("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
            self.device.check("cuEventDestroy_v2", event)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device is None:
            raise AttributeError("not on a GPU")
        return {
            "version": 3,
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self.pointer, self.read_only),
            "stream": self.stream,
        }
