"""Datum: an image with its label, as Caffe's databases hold it; read field by field, so that a label costs none of the pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dnncore.errors import PreprocessingError

__all__ = ["Datum", "label_of", "read_datum"]

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _ENCODED = 1, 2, 3, 4, 5, 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_BITS = 63

Field = tuple[int, int, memoryview]
"""Number, value of a varint, bytes of what has a length."""


class Datum(NamedTuple):
    """An image. Immutable.

    Args:
        shape: (C, H, W) of pixels; of an image in a file's format whatever was written.
        data: Pixels [C, H, W], or a file.
        label: Its class.
        encoded: Whether the data are a JPEG, PNG, ...
    """

    shape: tuple[int, int, int]
    data: memoryview
    label: int
    encoded: bool


def read_datum(message: memoryview) -> Datum:
    """All of it; the data are a part of the message.

    Raises:
        PreprocessingError: it is malformed.
    """
    numbers, data = dict.fromkeys((_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED), 0), memoryview(b"")
    for field, value, content in _fields(message):
        if field in numbers:
            numbers[field] = value
        elif field == _DATA:
            data = content
    channels, height, width, label, encoded = numbers.values()
    return Datum((channels, height, width), data, label, bool(encoded))


def label_of(message: memoryview) -> int:
    """Its label alone.

    Raises:
        PreprocessingError: it is malformed.
    """
    return next((value for field, value, _ in _fields(message) if field == _LABEL), 0)


def _fields(message: memoryview) -> Iterator[Field]:
    """The fields in their order, numbers of 32 and 64 bits without their values: of these Datum has none that is read here."""
    position, nothing = 0, memoryview(b"")
    while position < len(message):
        tag, position = _varint(message, position)
        kind, value, length = tag & 7, 0, 0
        if kind == _VARINT:
            value, position = _varint(message, position)
        elif kind == _BYTES:
            length, position = _varint(message, position)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise PreprocessingError(f"no Datum: byte {position} has wire type {kind}")
        if position + length > len(message):
            raise PreprocessingError(f"no Datum: {length} B at byte {position} of {len(message)}")
        yield tag >> 3, value, message[position : position + length] if kind == _BYTES else nothing
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """A number and the place behind it."""
    value = 0
    for shift in range(0, _MOST_BITS, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise PreprocessingError(f"no Datum: a number that does not end at byte {position}")
