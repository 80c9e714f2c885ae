"""Protobuf's wire format as a tree, whatever the message is: what can be changed without the file becoming unreadable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Field", "lists_of", "parsed", "serialized", "varint", "varints"]

_VARINT, _EIGHT, _MESSAGE, _FOUR = 0, 1, 2, 5
"""Kinds of fields; those of _MESSAGE have a length: messages, strings, weights."""

_MAX_MESSAGE = 1 << 16
"""Bytes of what may be a message; longer ones are weights."""


@dataclass
class Field:
    """A field of a message: its key, and its number, bytes or fields."""

    key: int
    value: int | bytes | list[Field]


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends.

    Raises:
        IndexError: the data ends before.
    """
    number, shift = 0, 0
    while data[at] & 128 and shift < 63:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1


def varints(data: bytes, first: int = 0, last: float = math.inf) -> Iterator[tuple[int, int]]:
    """Where the numbers and lengths of a message begin and end, and those of messages in it.

    What is no message is passed over as soon as that shows, so that a few places may be none.
    """
    at, last = first, min(last, len(data))
    try:
        while at < last:
            key, begin = _read_varint(data, at)
            if key & 7 in (_EIGHT, _FOUR):
                at = begin + (8 if key & 7 == _EIGHT else 4)
                continue
            if key & 7 not in (_VARINT, _MESSAGE) or not key >> 3:
                return
            number, at = _read_varint(data, begin)
            yield begin, at
            if key & 7 == _MESSAGE:
                if at + number > last:
                    return
                if number < _MAX_MESSAGE:
                    yield from varints(data, at, at + number)
                at += number
    except IndexError:
        return


def parsed(data: bytes) -> list[Field] | None:
    """The fields of a message; None where it is none."""
    fields: list[Field] = []
    at = 0
    try:
        while at < len(data):
            key, at = _read_varint(data, at)
            kind = key & 7
            if kind not in (_VARINT, _EIGHT, _MESSAGE, _FOUR) or not key >> 3:
                return None
            if kind == _VARINT:
                number, at = _read_varint(data, at)
                fields.append(Field(key, number))
                continue
            length = 8 if kind == _EIGHT else 4
            if kind == _MESSAGE:
                length, at = _read_varint(data, at)
            content = data[at : at + length]
            if len(content) < length:
                return None
            inner = parsed(content) if kind == _MESSAGE and 1 < length < _MAX_MESSAGE else None
            fields.append(Field(key, content if inner is None else inner))
            at += length
    except IndexError:
        return None
    return fields


def serialized(fields: list[Field]) -> bytes:
    """The message, with lengths that are right."""
    found = []
    for one in fields:
        found.append(varint(one.key))
        if isinstance(one.value, int):
            found.append(varint(one.value))
            continue
        content = one.value if isinstance(one.value, bytes) else serialized(one.value)
        found += [varint(len(content)) if one.key & 7 == _MESSAGE else b"", content]
    return b"".join(found)


def lists_of(fields: list[Field]) -> Iterator[list[Field]]:
    """The fields, and those of every message among them."""
    if fields:
        yield fields
    for one in fields:
        if isinstance(one.value, list):
            yield from lists_of(one.value)
