"""Tensors of ONNX files as arrays: kept in one of several fields, or in a file beside the model."""

from __future__ import annotations

import math
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
}
"""Element types that are read; more than there are on devices, because shapes are int64 and conditions bool."""

_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}
"""Where elements are that are not raw; those of all other types are in int32_data, 16-bit floats by their bits."""

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

    def _listed(self, tensor: TensorProto, dtype: np.dtype, size: int) -> np.ndarray:
        listed = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
        if len(listed) != size:
            raise BadParamError(f"{len(listed)} elements, the extents {list(tensor.dims)} need {size}")
        if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
            return np.array(listed, np.int32).astype(np.uint16).view(dtype)
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
                file.seek(offset)
                data = file.read(nbytes)
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
