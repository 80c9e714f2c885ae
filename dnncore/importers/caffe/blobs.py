"""Caffe's blobs as arrays: three ways to keep elements, two to keep extents."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dnncore.errors import ModelImportError
from dnncore.importers.caffe.dnncore_caffe_pb2 import BlobProto

__all__ = ["MAX_ELEMENTS", "extents", "fits", "to_array"]

MAX_ELEMENTS = (1 << 31) - 1
"""What a blob may have; Caffe counts in int."""

_RAW: dict[int, np.dtype[np.floating]] = {
    BlobProto.DOUBLE: np.dtype("<f8"),
    BlobProto.FLOAT: np.dtype("<f4"),
    BlobProto.FLOAT16: np.dtype("<f2"),
}
_LEGACY = ("num", "channels", "height", "width")


def extents(blob: BlobProto) -> tuple[int, ...]:
    """The blob's extents; four, of which leading ones may stand for nothing, where it is of the time before `shape`."""
    if any(blob.HasField(name) for name in _LEGACY):
        return tuple(getattr(blob, name) for name in _LEGACY)
    return tuple(blob.shape.dim)


def fits(blob: BlobProto, wanted: Sequence[int]) -> bool:
    """Whether the extents are those, for old blobs with ones before them."""
    found = extents(blob)
    if any(blob.HasField(name) for name in _LEGACY):
        return len(wanted) <= 4 and found == (*(1,) * (4 - len(wanted)), *wanted)
    return found == tuple(wanted)


def to_array(blob: BlobProto, what: str) -> np.ndarray:
    """The elements as float32, in the blob's extents.

    Args:
        blob: The message.
        what: How an error calls it.

    Raises:
        ModelImportError: there are more or fewer elements than the extents say, or they are of a type that is not read.
    """
    shape = extents(blob)
    elements = _elements(blob, what)
    if min(shape, default=1) < 0 or math.prod(shape) != elements.size:
        raise ModelImportError(what, [f"has {elements.size} elements, which its extents {list(shape)} do not say"])
    return elements.reshape(shape)


def _elements(blob: BlobProto, what: str) -> np.ndarray:
    if blob.HasField("raw_data"):
        kind = _RAW.get(blob.raw_data_type)
        if kind is None or len(blob.raw_data) % kind.itemsize:
            name = BlobProto.Type.Name(blob.raw_data_type)
            raise ModelImportError(what, [f"raw data of type {name} and {len(blob.raw_data)} bytes are not read"])
        raw: np.ndarray = np.frombuffer(blob.raw_data, kind).astype(np.float32)
        return raw
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, as in a cast
        return np.array(blob.double_data if blob.double_data else blob.data, np.float32)
