"""DLPack: memory of another library as ours and ours as another's, without a copy. The structs and capsules; no device, no stream.

A capsule of ours is made by NumPy, for an array laid over memory that it never touches; what NumPy cannot say (the device,
bfloat16) is then written into the capsule's tensor. So what a consumer calls when it lets go, in any thread, with an exception
under way or after the interpreter's end, is NumPy's own, in C.

Source: https://dmlc.github.io/dlpack, version 1.1; the Python array API standard, 2024.12, `__dlpack__`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

__all__ = ["CPU", "LEGACY_DEFAULT_STREAM", "Borrowed", "DeviceType", "borrow", "capsule", "laid_over"]


class DeviceType(IntEnum):
    """DLDeviceType, as far as we know one."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    CUDA_MANAGED = 13


CPU = (DeviceType.CPU, 0)
"""Where host memory is; the only device whose memory NumPy reads."""

LEGACY_DEFAULT_STREAM = 1
"""The default stream of CUDA in the numbers that `__dlpack__` takes, where 0 is ambiguous."""

_FIRST_VERSION = (1, 0)
"""Which consumers of versioned capsules understand at least, and what we ask producers for."""

_READ_ONLY, _IS_COPIED = 1, 2
"""DLPACK_FLAG_BITMASK_READ_ONLY and _IS_COPIED."""

_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_KINDS: tuple[tuple[bytes, type[_Managed | _Versioned]], ...] = (
    (b"dltensor_versioned", _Versioned),
    (b"dltensor", _Managed),
)
_USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}  # a capsule keeps no copy

_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


def _data_type(dtype: DType) -> tuple[int, int, int]:
    """(code, bits, lanes) of DLDataType."""
    code = 4 if dtype is DType.BFLOAT16 else {"i": 0, "u": 1, "f": 2, "b": 6}[dtype.numpy.kind]
    return code, 8 * dtype.itemsize, 1


_DTYPES = {_data_type(dtype): dtype for dtype in DType}


class Borrowed:
    """Memory of another library that we may use until `release`. Thread-safe.

    Args:
        pointer: Where the first element lies.
        descriptor: What is there.
        device: (DeviceType, index); None where the producer does not say.
        read_only: Whether it must not be written.
        give_back: Tells the producer that we need it no more; called once, at the latest when this object is collected.
    """

    def __init__(
        self,
        pointer: int,
        descriptor: TensorDescriptor,
        device: tuple[int, int] | None,
        read_only: bool,
        give_back: Callable[[], object],
    ) -> None:
        self.pointer = pointer
        self.descriptor = descriptor
        self.device = device
        self.read_only = read_only
        self._finalizer = weakref.finalize(self, give_back)
        self._finalizer.atexit = False  # what lives at the interpreter's exit is let go of by its own rules

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        self._finalizer()


class _Block:
    """What an array laid over foreign memory has as its base."""

    def __init__(self, interface: dict[str, object]) -> None:
        self.__array_interface__ = interface


def laid_over(
    pointer: int,
    shape: tuple[int, ...],
    byte_strides: tuple[int, ...],
    itemsize: int,
    *,
    read_only: bool,
    release: Callable[[], object],
) -> np.ndarray:
    """Lay an array of unsigned integers over memory; `release` is called once nothing looks into it any more, in any thread."""
    block = _Block(
        {
            "version": 3,
            "data": (pointer, read_only),
            "shape": shape,
            "strides": byte_strides,
            "typestr": np.dtype(f"u{itemsize}").str,
        }
    )
    finalizer = weakref.finalize(block, release)
    finalizer.atexit = False
    return np.asarray(block)


def capsule(
    array: np.ndarray, dtype: DType, device: tuple[int, int], max_version: tuple[int, int] | None, *, copied: bool
) -> CapsuleType:
    """Put an array into a capsule, as one of `dtype` on `device`; the capsule, then its consumer, keep the array.

    Args:
        array: Of unsigned integers as wide as the elements.
        dtype: What these are.
        device: Where they are.
        max_version: The consumer's; from 1.0 on the capsule is versioned.
        copied: Whether the memory is a copy that nobody else sees.

    Raises:
        BufferError: the array is read-only and the consumer cannot be told so.
    """
    versioned = max_version is not None and tuple(max_version) >= _FIRST_VERSION
    if not versioned and not array.flags.writeable:
        raise BufferError(
            "the tensor is read-only, which only DLPack 1.0 can say; pass max_version=(1, 0), or copy=True"
        )
    made, managed = _made_by_numpy(array, versioned)
    tensor = managed.tensor
    tensor.device.type, tensor.device.index = device
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = _data_type(dtype)
    if isinstance(managed, _Versioned) and copied:
        managed.flags |= _IS_COPIED
    return made


def _made_by_numpy(array: np.ndarray, versioned: bool) -> tuple[CapsuleType, _Managed | _Versioned]:
    made: Any = None
    if versioned:
        try:
            made = array.__dlpack__(max_version=_FIRST_VERSION)
        except TypeError as error:  # before 2.1, NumPy has none; the standard lets a producer answer with the old form
            if not array.flags.writeable:
                raise BufferError("NumPy before 2.1 cannot share read-only memory through DLPack") from error
    if made is None:
        made = array.__dlpack__()
    _, managed = _opened(made)
    return made, managed


def _opened(made: object) -> tuple[bytes, _Managed | _Versioned]:
    for name, kind in _KINDS:
        if _is_valid(made, name):
            return name, kind.from_address(_pointer_in(made, name))
    raise BadParamError(f"__dlpack__() gave {made!r}; a capsule named dltensor or dltensor_versioned was expected")


def borrow(array: Any, device: tuple[int, int], stream: int | None) -> Borrowed:
    """Ask a library for its memory.

    Args:
        array: Has `__dlpack__` and `__dlpack_device__`.
        device: Where it must be.
        stream: The CUstream that the producer makes wait for its own work; None on the CPU.

    Raises:
        BadParamError: it is elsewhere, of a dtype that we do not have, has a negative stride, or speaks a newer DLPack.
    """
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        raise BadParamError(
            f"{type(array).__name__} has no __dlpack__ and __dlpack_device__; pass an array, not a capsule"
        )
    _check_place(array.__dlpack_device__(), device)
    try:
        made = array.__dlpack__(stream=stream, max_version=_FIRST_VERSION)
    except TypeError:  # a producer from before DLPack 1.0
        made = array.__dlpack__(stream=stream)
    name, managed = _opened(made)
    pointer = ctypes.addressof(managed)
    _rename(made, _USED[name])  # from here on it is ours to delete
    give_back = _give_back(pointer, managed.deleter)
    try:
        _check_version(managed)
        _check_place((managed.tensor.device.type, managed.tensor.device.index), device)
        return Borrowed(
            (managed.tensor.data or 0) + managed.tensor.byte_offset,
            _descriptor(managed.tensor),
            device,
            isinstance(managed, _Versioned) and bool(managed.flags & _READ_ONLY),
            give_back,
        )
    except BaseException:
        give_back()
        raise


def _check_version(managed: _Managed | _Versioned) -> None:
    # Of another major version only the deleter is sure to be where we look for it.
    if isinstance(managed, _Versioned) and managed.major != _FIRST_VERSION[0]:
        raise BadParamError(f"the producer speaks DLPack {managed.major}.{managed.minor}; 1.x is understood")


def _give_back(pointer: int, deleter: int | None) -> Callable[[], object]:
    def call() -> None:
        if deleter:
            _DELETER(deleter)(pointer)

    return call


def _check_place(there: tuple[int, int], here: tuple[int, int]) -> None:
    kind, index = int(there[0]), int(there[1])
    # Page-locked and managed memory is the host's as well; a device reads managed memory as its own.
    places: dict[int, tuple[int, int]] = {DeviceType.CPU: CPU, DeviceType.CUDA_HOST: CPU, DeviceType.CUDA_MANAGED: here}
    if places.get(kind, (kind, index)) != here:
        raise BadParamError(
            f"the array is on {_named(kind, index)}, this handle on {_named(*here)}; use a handle of that device, or upload a "
            "copy from the host"
        )


def _named(kind: int, index: int) -> str:
    if kind == DeviceType.CPU:
        return "cpu"
    return f"cuda:{index}" if kind == DeviceType.CUDA else f"DLPack device ({kind}, {index})"


def _descriptor(tensor: _Tensor) -> TensorDescriptor:
    found = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    dtype = _DTYPES.get(found)
    if dtype is None:
        names = ", ".join(member.value for member in DType)
        raise BadParamError(f"DLPack dtype (code, bits, lanes) = {found} is not supported; use one of {names}")
    shape = tuple(tensor.shape[: tensor.ndim])
    if not tensor.strides:  # row-major
        return TensorDescriptor.packed(shape, dtype)
    return TensorDescriptor(dtype, shape, tuple(tensor.strides[: tensor.ndim]))
