"""Tensors of ONNX files as arrays: kept in one of several fields, or in a file beside the model."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import ml_dtypes
import numpy as np
from onnx import TensorProto

from dnncore.errors import BadParamError
from dnncore.importers.onnx.limits import Budget

__all__ = ["DTYPES", "TensorReader", "dtype_of"]

DTYPES: dict[int, np.dtype] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorProto.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    TensorProto.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    TensorProto.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    TensorProto.FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    TensorProto.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    TensorProto.INT4: np.dtype(ml_dtypes.int4),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4),
    TensorProto.INT2: np.dtype(ml_dtypes.int2),
    TensorProto.UINT2: np.dtype(ml_dtypes.uint2),
}
"""Element types that are read; more than there are on devices, because shapes are int64, and compressed weights of 8 bits or less
that the file casts to what a device multiplies."""

_BITS: dict[int, int] = {
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}
"""Of elements of which several share a byte in a file, the first in the lowest bits. An array has one of them a byte."""

_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}
"""Where elements are that are not raw; those of all other types are in int32_data, `_BY_BITS` by their bits."""

_BY_BITS: dict[int, type[np.unsignedinteger]] = {
    TensorProto.FLOAT16: np.uint16,
    TensorProto.BFLOAT16: np.uint16,
    TensorProto.FLOAT8E4M3FN: np.uint8,
    TensorProto.FLOAT8E4M3FNUZ: np.uint8,
    TensorProto.FLOAT8E5M2: np.uint8,
    TensorProto.FLOAT8E5M2FNUZ: np.uint8,
    TensorProto.FLOAT8E8M0: np.uint8,
}
"""Types whose numbers in int32_data are bits, and how many of them."""

_MAX_NDIM = 64


def dtype_of(number: int) -> np.dtype:
    """The element type that a file gives by number.

    Raises:
        BadParamError: it is none that is read.
    """
    if number not in DTYPES:
        names: dict[int, str] = {value: key for key, value in TensorProto.DataType.items()}
        raise BadParamError(f"element type {names.get(number, number)} is not supported")
    return DTYPES[number]


class TensorReader:
    """Reads tensors within a budget. Owned by one thread; not checked.

    Args:
        budget: For all of them together.
        folder: Where files with external data are; None where the model was no file.
    """

    def __init__(self, budget: Budget, folder: Path | None) -> None:
        self._budget = budget
        self._folder = folder

    def read(self, tensor: TensorProto) -> np.ndarray:
        """The elements.

        Raises:
            BadParamError: their number is not what the extents say, the dtype is not read, there are too many, or a file with
                external data is missing, too short, or outside the model's folder.
        """
        dtype, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
        if len(shape) > _MAX_NDIM:
            raise BadParamError(f"{len(shape)} dimensions are too many")
        if tensor.HasField("segment"):
            raise BadParamError("tensors in segments are not supported")
        self._budget.claim(shape, dtype.itemsize)
        stored = dtype.newbyteorder("<") if dtype.kind in "iuf" else dtype
        if tensor.data_type in _BITS:
            return self._packed(tensor, dtype, _BITS[tensor.data_type]).reshape(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        if tensor.data_location == TensorProto.EXTERNAL:
            flat = np.frombuffer(self._external(tensor, nbytes), stored)
        elif tensor.HasField("raw_data"):
            if len(tensor.raw_data) != nbytes:
                raise BadParamError(f"{len(tensor.raw_data)} B of data, the extents {list(shape)} need {nbytes} B")
            flat = np.frombuffer(tensor.raw_data, stored)
        else:
            flat = self._listed(tensor, dtype, math.prod(shape))
        return flat.astype(dtype, copy=False).reshape(shape)

    def _packed(self, tensor: TensorProto, dtype: np.dtype, bits: int) -> np.ndarray:
        """Elements of which several share a byte."""
        size = math.prod(tensor.dims)
        nbytes = -(-size * bits // 8)
        if tensor.data_location == TensorProto.EXTERNAL:
            data = np.frombuffer(self._external(tensor, nbytes), np.uint8)
        elif tensor.HasField("raw_data"):
            data = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            data = np.array(tensor.int32_data, np.int32).astype(np.uint8)
        if data.size != nbytes:
            raise BadParamError(f"{data.size} B of data, the extents {list(tensor.dims)} need {nbytes} B")
        shifts = np.array(range(0, 8, bits), np.uint8)
        apart: np.ndarray = data[:, None] >> shifts & np.uint8((1 << bits) - 1)
        return apart.reshape(-1)[:size].view(dtype)

    def _listed(self, tensor: TensorProto, dtype: np.dtype, size: int) -> np.ndarray:
        listed = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
        if len(listed) != size:
            raise BadParamError(f"{len(listed)} elements, the extents {list(tensor.dims)} need {size}")
        if tensor.data_type in _BY_BITS:
            return np.array(listed, np.int32).astype(_BY_BITS[tensor.data_type]).view(dtype)
        return np.array(listed, dtype if tensor.data_type in _FIELDS else np.int32).astype(dtype)

    def _external(self, tensor: TensorProto, nbytes: int) -> bytes:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self._folder is None:
            raise BadParamError(f"its data is in the file {location!r}: import the model by its path")
        path = self._inside(location)
        offset, length = _number(entries, "offset", 0), _number(entries, "length", nbytes)
        if length != nbytes:
            raise BadParamError(f"{location!r} holds {length} B of it, the extents need {nbytes} B")
        try:
            if not path.is_file():
                raise BadParamError(f"its data is in the file {location!r}, which is not beside the model")
            with path.open("rb") as file:
                there = os.fstat(file.fileno()).st_size - offset
                file.seek(offset)
                data = file.read(nbytes) if there >= nbytes else b""  # which takes the room before it reads
        except OSError as error:
            raise BadParamError(f"its data is in the file {location!r}, which cannot be read: {error}") from error
        if len(data) != nbytes:
            raise BadParamError(f"{location!r} ends before byte {offset + nbytes}")
        return data

    def _inside(self, location: str) -> Path:
        """The file of a name that does not leave the model's folder, by no link either."""
        assert self._folder is not None
        parts = PurePosixPath(location).parts
        bad = (
            not parts
            or location.startswith("/")
            or ".." in parts
            or PureWindowsPath(location).drive
            or "\0" in location
        )
        folder = self._folder.resolve()
        path = folder if bad else (folder / location).resolve()
        if bad or not path.is_relative_to(folder):
            raise BadParamError(f"its data is said to be in {location!r}, which is outside the model's folder")
        return path


def _number(entries: dict[str, str], key: str, otherwise: int) -> int:
    text = entries.get(key, str(otherwise))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadParamError(f"external data with {key} {text!r}")
    return int(text)
