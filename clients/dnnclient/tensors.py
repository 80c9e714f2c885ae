"""Between NumPy arrays and tensors of the Open Inference Protocol in their raw form."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from dnnclient.errors import InvalidArgumentError, ServerError

__all__ = ["datatype_of", "from_raw", "to_raw"]

_DTYPES = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_DATATYPES = {dtype.name: datatype for datatype, dtype in _DTYPES.items()}
_LENGTH = struct.Struct("<I")  # stands before each element of a BYTES tensor


def datatype_of(array: np.ndarray) -> str:
    """Return the protocol's name of an array's type; an array of objects is BYTES.

    Raises:
        InvalidArgumentError: the protocol has no such type.
    """
    if array.dtype == np.object_:
        return "BYTES"
    try:
        return _DATATYPES[array.dtype.name]
    except KeyError:
        names = ", ".join(_DATATYPES)
        raise InvalidArgumentError(f"dtype {array.dtype} cannot be sent; use {names} or objects (bytes)") from None


def to_raw(array: np.ndarray) -> bytes:
    """Return an array's elements as the protocol's bytes: row-major, little-endian.

    Raises:
        InvalidArgumentError: a type that the protocol does not have, or an element of a BYTES tensor that is not bytes.
    """
    datatype = datatype_of(array)
    if datatype != "BYTES":
        return array.astype(_DTYPES[datatype], copy=False).tobytes()
    chunks: list[bytes] = []
    for element in array.flat:
        if not isinstance(element, bytes):
            raise InvalidArgumentError(
                f"an element of an object array is {type(element).__name__}; only bytes are sent"
            )
        chunks += (_LENGTH.pack(len(element)), element)
    return b"".join(chunks)


def from_raw(datatype: str, shape: Sequence[int], raw: bytes) -> np.ndarray:
    """Return a tensor from its raw form: a read-only view of raw, or for BYTES a new array of objects.

    Raises:
        ServerError: an unknown datatype, or bytes that do not fit the shape.
    """
    if min(shape, default=0) < 0:
        raise ServerError(f"a tensor of shape {list(shape)} came back")
    elements = _split(raw) if datatype == "BYTES" else _numbers(datatype, raw)
    try:
        return elements.reshape(tuple(shape))
    except ValueError as error:
        raise ServerError(
            f"{len(raw)} bytes came back for a tensor {datatype}{list(shape)}, which hold {elements.size} elements"
        ) from error


def _numbers(datatype: str, raw: bytes) -> np.ndarray:
    dtype = _DTYPES.get(datatype)
    if dtype is None or len(raw) % dtype.itemsize:
        raise ServerError(f"{len(raw)} bytes of datatype {datatype!r} came back, which are not a tensor known here")
    return np.frombuffer(raw, dtype)


def _split(raw: bytes) -> np.ndarray:
    elements: list[bytes] = []
    position = 0
    while position < len(raw):
        start = position + _LENGTH.size
        if start > len(raw):
            break
        position = start + _LENGTH.unpack_from(raw, start - _LENGTH.size)[0]
        elements.append(raw[start:position])
    if position != len(raw):
        raise ServerError(f"a BYTES tensor of {len(raw)} bytes came back, cut off at element {len(elements)}")
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
