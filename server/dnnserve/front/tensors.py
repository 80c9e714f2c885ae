"""Tensors of requests: whether datatype, shape and size fit the model, and what their bytes or their typed fields hold."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnncore.dtypes import DType
from dnncore.preprocessing import Preprocessing
from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.sources import Images
from dnnserve.signature import TensorSpec

__all__ = ["CONTENTS", "DATATYPES", "DTYPES", "Given", "check_count", "images", "images_of", "rows_of"]

DATATYPES = {
    DType.FLOAT16: "FP16",
    DType.BFLOAT16: "BF16",
    DType.FLOAT32: "FP32",
    DType.FLOAT64: "FP64",
    DType.INT8: "INT8",
    DType.UINT8: "UINT8",
    DType.INT32: "INT32",
    DType.BOOL: "BOOL",
}
"""The protocol's names of element types."""

DTYPES = {datatype: dtype.numpy for dtype, datatype in DATATYPES.items()}
"""Of tensors whose bytes are rows."""

CONTENTS = {
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT8": "int_contents",
    "UINT8": "uint_contents",
    "INT32": "int_contents",
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
}
"""Typed fields by datatypes; those of 16 bits have none."""

_LENGTH = struct.Struct("<I")
_BOOL = DType.BOOL.numpy


class Given(NamedTuple):
    """An input as the form of a request gives it, whose shape was checked. Immutable.

    Args:
        tensor: An InferInputTensor.
        shape: Its extents.
        dtype: Of its bytes, where they are rows; None: they are images.
        nbytes: How many there are; of images nobody can say.
        place: Where they are among `raw_input_contents`; None: it has contents.
    """

    tensor: Any
    shape: tuple[int, ...]
    dtype: np.dtype | None
    nbytes: int
    place: int | None

    @classmethod
    def of(cls, tensor: Any, place: int | None, expected: TensorSpec, spec: ModelSpec) -> Given:
        """Check an InferInputTensor.

        Raises:
            InvalidRequestError: its datatype or shape is none that the model takes for this input.
        """
        datatype, shape = tensor.datatype, tuple(tensor.shape)
        _check_shape(datatype, shape, expected, spec)
        dtype = DTYPES.get(datatype)
        return cls(tensor, shape, dtype, 0 if dtype is None else math.prod(shape) * dtype.itemsize, place)


def _check_shape(datatype: str, shape: tuple[int, ...], expected: TensorSpec, spec: ModelSpec) -> None:
    """Raise for an input of the model that is of no datatype or shape that it takes."""
    own, row_shape, names = DATATYPES[expected.dtype], expected.shape, ""
    taken = [own]
    if spec.preprocessing is not None:
        taken += ["UINT8", "BYTES"]
        names = " (N, C, H, W)"
    if datatype not in taken:
        if datatype in ("UINT8", "BYTES"):
            raise _no_images(spec, expected)
        raise InvalidRequestError(
            f"datatype {shorten(datatype)} of input {expected.name!r} is not supported; use {', '.join(taken)}"
        )
    if datatype != own:
        if datatype == "UINT8":
            names, row_shape = " (N, H, W, C)", spec.signature.pixels[0].shape
        else:
            names, row_shape = " (N)", (1,) if shape[1:] == (1,) else ()
    if not shape or shape[1:] != row_shape:
        raise InvalidRequestError(
            f"shape {_bounded(shape)} of {datatype} input {expected.name!r} does not fit; send {_rows_shape(row_shape)}{names}"
        )
    check_count(shape[0], spec)


def check_count(count: int, spec: ModelSpec) -> None:
    """Raise for more rows than a request may have, or none."""
    if not 1 <= count <= spec.max_batch_rows:
        raise InvalidRequestError(
            f"the request has {count} rows; model {spec.key} takes 1 to {spec.max_batch_rows} a request"
        )


def rows_of(given: Given, contents: Sequence[bytes | memoryview]) -> np.ndarray:
    """Rows of an input that is no image.

    Args:
        given: As it was checked.
        contents: `raw_input_contents` of its request.
    """
    tensor, shape, dtype, nbytes, place = given
    if place is None:
        return _typed_rows(tensor, shape)
    content = contents[place]
    if len(content) != nbytes:
        raise InvalidRequestError(f"the tensor has {len(content)} bytes; {tensor.datatype}{list(shape)} has {nbytes}")
    if dtype is _BOOL:  # perf_analyzer sends any bytes; to a net true is 1
        return np.ndarray(shape, np.uint8, content).astype(np.bool_)
    return np.ndarray(shape, dtype, content)


def images_of(given: Given, contents: Sequence[bytes | memoryview], spec: ModelSpec) -> Images:
    """Images of a BYTES input."""
    tensor, count, place = given.tensor, given.shape[0], given.place
    if place is not None:
        return images(_bytes_elements(contents[place], count), count, spec)
    _check_only_contents(tensor)
    return images(tensor.contents.bytes_contents, count, spec)


def _typed_rows(tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of a repeated field whose length is compared with the shape first."""
    datatype, dtype = tensor.datatype, DTYPES[tensor.datatype]
    field = _check_only_contents(tensor)
    values = getattr(tensor.contents, field)
    if len(values) != math.prod(shape):
        raise InvalidRequestError(f"{field} has {len(values)} elements; shape {list(shape)} has {math.prod(shape)}")
    if datatype not in ("INT8", "UINT8"):
        return np.fromiter(values, dtype, len(values)).reshape(shape)
    wide, ends = np.fromiter(values, np.int64, len(values)), np.iinfo(dtype)
    for value, end in ((wide.min(initial=0), ends.min), (wide.max(initial=0), ends.max)):
        if not ends.min <= value <= ends.max:
            raise InvalidRequestError(f"{field} has the value {value}; {datatype} ends at {end}")
    return wide.astype(dtype).reshape(shape)


def _check_only_contents(tensor: Any) -> str:
    """The field that is for a tensor's datatype, the only one that it has."""
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidRequestError(
            f"contents have no field for {tensor.datatype}, which is the datatype of input {shorten(tensor.name)}: send its bytes, "
            "in raw_input_contents or as binary data"
        )
    others = [each.name for each, _ in tensor.contents.ListFields() if each.name != field]
    if others:
        raise InvalidRequestError(
            f"input {shorten(tensor.name)} has {', '.join(others)}; {tensor.datatype} is sent in {field} alone"
        )
    return field


def _preprocessing(spec: ModelSpec) -> Preprocessing:
    if spec.preprocessing is None:
        raise _no_images(spec, spec.signature.inputs[0])
    return spec.preprocessing


def _no_images(spec: ModelSpec, expected: TensorSpec) -> InvalidRequestError:
    return InvalidRequestError(
        f"model {spec.key} is served without preprocessing, so it takes no images and no pixels; send "
        f"{DATATYPES[expected.dtype]} {_rows_shape(expected.shape)}"
    )


def _rows_shape(row_shape: Sequence[int]) -> str:
    return f"[{', '.join(['n', *map(str, row_shape)])}]"


def _bytes_elements(raw: bytes | memoryview, count: int) -> list[memoryview]:
    """Split a raw BYTES tensor: for each element four bytes of little-endian length, then the element."""
    view, position = memoryview(raw), 0
    elements: list[memoryview] = []
    for index in range(count):
        if len(view) - position < _LENGTH.size:
            raise InvalidRequestError(f"the BYTES tensor ends after {index} elements; its shape has {count}")
        (length,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        if length > len(view) - position:
            raise InvalidRequestError(
                f"element {index} of the BYTES tensor claims {length} bytes; {len(view) - position} are left"
            )
        elements.append(view[position : position + length])
        position += length
    if position != len(view):
        raise InvalidRequestError(f"the BYTES tensor has {len(view) - position} bytes after its {count} elements")
    return elements


def images(files: Sequence[bytes | memoryview], count: int, spec: ModelSpec) -> Images:
    """Files that rows are made of, as many as a shape says."""
    if len(files) != count:
        raise InvalidRequestError(f"bytes_contents has {len(files)} elements; the shape has {count}")
    return Images(files, _preprocessing(spec))


def _bounded(shape: tuple[int, ...]) -> str:
    return str(list(shape)) if len(shape) <= 8 else f"of {len(shape)} dimensions"
