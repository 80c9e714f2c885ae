"""Tensors of requests: whether datatype, shape and size fit the model, and what their bytes or their typed fields hold."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnncore.preprocessing import Preprocessing
from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.sources import Images

__all__ = ["DTYPES", "check_count", "check_shape", "images", "input_of", "nbytes_of", "size_error"]

DTYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype("u1")}
"""Of tensors whose bytes are rows."""

_LENGTH = struct.Struct("<I")
_CONTENTS = {"FP32": "fp32_contents", "UINT8": "uint_contents", "BYTES": "bytes_contents"}


def check_shape(datatype: str, shape: tuple[int, ...], spec: ModelSpec) -> None:
    """Raise for an input of the model that is of no datatype or shape that it takes."""
    row_shape: tuple[int, ...]
    match datatype:
        case "FP32":
            names, row_shape = "N, C, H, W", spec.input_shape
        case "UINT8":
            names, row_shape = "N, H, W, C", (*spec.input_shape[1:], spec.input_shape[0])
        case "BYTES":
            names, row_shape = "N", (1,) if shape[1:] == (1,) else ()
        case _:
            known = ", ".join(_CONTENTS)
            raise InvalidRequestError(
                f"datatype {shorten(datatype)} of input {spec.input_name!r} is not supported; use {known}"
            )
    if not shape or shape[1:] != row_shape:
        wanted = ", ".join(["n", *map(str, row_shape)])
        raise InvalidRequestError(
            f"shape {_bounded(shape)} of {datatype} input {spec.input_name!r} does not fit; send [{wanted}] ({names})"
        )
    check_count(shape[0], spec)
    if datatype == "UINT8":
        _preprocessing(spec)


def check_count(count: int, spec: ModelSpec) -> None:
    """Raise for more rows than a request may have, or none."""
    if not 1 <= count <= spec.max_batch_rows:
        raise InvalidRequestError(
            f"the request has {count} rows; model {spec.key} takes 1 to {spec.max_batch_rows} a request"
        )


def nbytes_of(datatype: str, shape: tuple[int, ...]) -> int:
    """Of a tensor; of images nobody can say."""
    return math.prod(shape) * DTYPES[datatype].itemsize if datatype in DTYPES else 0


def size_error(datatype: str, shape: tuple[int, ...], found: int, nbytes: int) -> InvalidRequestError:
    """A tensor has other bytes than its shape says."""
    return InvalidRequestError(f"the tensor has {found} bytes; {datatype}{list(shape)} has {nbytes}")


def input_of(
    tensor: Any, shape: tuple[int, ...], contents: Sequence[bytes | memoryview], spec: ModelSpec
) -> np.ndarray | Images:
    """Rows or images of an input whose shape was checked.

    Args:
        tensor: An InferInputTensor.
        shape: Its.
        contents: `raw_input_contents` of its request; without any, the tensor has a typed field.
        spec: The model's.
    """
    if len(contents) > 1:
        raise InvalidRequestError(f"the request has {len(contents)} raw_input_contents for 1 input; send one an input")
    if contents and tensor.HasField("contents"):
        raise InvalidRequestError(
            f"input {spec.input_name!r} has both contents and raw_input_contents; send one of the two"
        )
    datatype, typed = tensor.datatype, tensor.contents
    source: np.ndarray | Images
    if datatype in DTYPES and contents:
        nbytes = nbytes_of(datatype, shape)
        if len(contents[0]) != nbytes:
            raise size_error(datatype, shape, len(contents[0]), nbytes)
        return np.ndarray(shape, DTYPES[datatype], contents[0])
    if datatype == "BYTES":
        source = images(_bytes_elements(contents[0], shape[0]) if contents else typed.bytes_contents, shape[0], spec)
    elif datatype == "FP32":
        source = _typed(typed.fp32_contents, "<f4", "fp32_contents", shape)
    else:
        source = _pixels(typed.uint_contents, shape)
    if not contents:
        _check_only_contents(datatype, tensor)
    return source


def _check_only_contents(datatype: str, tensor: Any) -> None:
    others = [field.name for field, _ in tensor.contents.ListFields() if field.name != _CONTENTS[datatype]]
    if others:
        raise InvalidRequestError(
            f"input {shorten(tensor.name)} has {', '.join(others)} beside {_CONTENTS[datatype]}; {datatype} is sent in that alone"
        )


def _preprocessing(spec: ModelSpec) -> Preprocessing:
    if spec.preprocessing is None:
        shape = ", ".join(map(str, spec.input_shape))
        raise InvalidRequestError(
            f"model {spec.key} is served without preprocessing, so it takes no images and no pixels; send FP32 [n, {shape}]"
        )
    return spec.preprocessing


def _typed(values: Sequence[float], dtype: str, field: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array of a repeated field whose length was compared with the shape first."""
    if len(values) != math.prod(shape):
        raise InvalidRequestError(f"{field} has {len(values)} elements; shape {list(shape)} has {math.prod(shape)}")
    return np.fromiter(values, dtype, len(values)).reshape(shape)


def _pixels(values: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
    pixels = _typed(values, "<u4", "uint_contents", shape)
    if pixels.max() > np.iinfo(np.uint8).max:
        raise InvalidRequestError(f"uint_contents has the value {pixels.max()}; UINT8 ends at 255")
    return pixels.astype(np.uint8)


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
